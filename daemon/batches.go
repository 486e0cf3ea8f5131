package daemon

import (
	"github.com/paddock-run/paddock/api"
	"github.com/paddock-run/paddock/runner"
)

func batchSpec(in api.BatchSpec) (runner.BatchSpec, error) { return runner.BatchSpec(in), nil }

func wireBatch(b runner.Batch) api.Batch { return api.Batch(b) }

func wireBatchResult(r runner.BatchResult) api.BatchResult { return api.BatchResult(r) }
