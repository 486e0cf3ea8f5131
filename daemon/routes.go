package daemon

import (
	"net/http"
	"reflect"

	"github.com/paddock-run/paddock/api"
)

const (
	runPath      = "/v1/runs/{run}"
	episodePath  = runPath + "/episodes/{id}"
	batchPath    = "/v1/batches/{batch}"
	graderPath   = "/v1/graders/{grader}"
	simPath      = "/v1/simulators/{simulator}"
	snapshotPath = "/v1/snapshots/{snapshot}"
	worldPath    = "/v1/worlds/{world}"
	datasetPath  = "/v1/datasets/{dataset}"
	appsPath     = "/v1/apps"
	appPath      = appsPath + "/{app}"
)

// routes is the one table of what the daemon serves.
func routes() []route {
	var all []route
	for _, part := range [][]route{metaRoutes(), worldRoutes(), runRoutes(), episodeRoutes(), endRoutes(), recordRoutes(), scoreRoutes(), batchRoutes(), judgeRoutes(), datasetRoutes(), simulatorRoutes(), appRoutes(), openEnvRoutes()} {
		all = append(all, part...)
	}
	return all
}

func metaRoutes() []route {
	return []route{
		typed("GET", "/healthz", "health", "Whether the daemon takes work", (*Server).health, draining),
		raw("GET", "/metrics", "metrics", "Prometheus metrics", (*Server).serveMetrics, draining, gives(nil, "text/plain")),
		raw("GET", "/openapi.json", "openapi", "This document", (*Server).serveDocument, draining, gives(nil, api.MediaJSON)),
		typed("GET", "/v1/version", "version", "What answers", (*Server).version, draining),
		typed("GET", "/v1/capacity", "capacity", "What there is, what is reserved and what waits", (*Server).capacity, draining),
		typed("GET", "/v1/policies", "listPolicies", "List the policies", (*Server).listPolicies, draining),
		typed("GET", "/v1/policies/{policy}", "getPolicy", "A policy and the runtime-spec it makes", (*Server).getPolicy, draining, may(api.UnknownPolicy)),
		raw("POST", "/v1/leases", "openLease", "Hold a lease for as long as this connection is open", (*Server).lease,
			gives(reflect.TypeFor[api.LeaseEvent](), api.MediaStream)),
	}
}

func worldRoutes() []route {
	missing := may(api.UnknownWorld)
	registry := may(api.RegistryDenied, api.RegistryNotFound, api.RegistryDown, api.PermissionDenied)
	return []route{
		typed("GET", "/v1/worlds", "listWorlds", "List the worlds", (*Server).listWorlds, draining),
		raw("POST", "/v1/worlds", "buildWorld", "Build a world; streams progress, then the world", (*Server).buildWorld,
			takes(reflect.TypeFor[api.Recipe](), api.MediaJSON, api.MediaTar), header(api.HeaderRecipe, "the recipe, when the body is its tar"), gives(reflect.TypeFor[api.BuildEvent](), api.MediaStream),
			missing, may(api.BadRecipe, api.BadArchive, api.BuildFailed, api.PermissionDenied, api.UnknownPolicy, api.OverCapacity, api.Corrupt)),
		raw("POST", "/v1/imports", "importWorld", "Import an image: the archive that is the body, or what a JSON body names; streams progress, then the world", (*Server).importWorld,
			takes(reflect.TypeFor[api.ImportSpec](), api.MediaJSON, api.MediaTar, api.MediaBytes), gives(reflect.TypeFor[api.BuildEvent](), api.MediaStream), body(rawBody),
			param("name", "string", "a name to point at the world"), param("image", "string", "picks one by its name where an archive holds several"),
			registry, may(api.BadRecipe, api.BadArchive, api.Corrupt)),
		typed("POST", "/v1/collections", "collectWorlds", "Remove worlds that nothing needs, down to a bound", (*Server).collectWorlds, may(api.PermissionDenied)),
		typed("GET", worldPath, "getWorld", "A world by id, unique prefix or name", (*Server).getWorld, draining, missing),
		typed("DELETE", worldPath, "removeWorld", "Remove a world that nothing uses", (*Server).removeWorld, missing, may(api.InUse)),
		typed("POST", worldPath+"/names", "nameWorld", "Point a name at a world, whatever it meant before", (*Server).nameWorld, missing, may(api.BadRecipe)),
		raw("POST", worldPath+"/push", "pushWorld", "Send a world to a registry as an image; streams progress, then the manifest's reference", (*Server).pushWorld,
			takes(reflect.TypeFor[api.Registry](), api.MediaJSON), gives(reflect.TypeFor[api.BuildEvent](), api.MediaStream),
			missing, registry, may(api.BadRecipe, api.Corrupt)),
		raw("GET", worldPath+"/export", "exportWorld", "The world as an OCI image layout tar", (*Server).exportWorld, draining,
			gives(nil, api.MediaTar), missing, may(api.Corrupt, api.BadRecipe)),
	}
}

func runRoutes() []route {
	return []route{
		typed("POST", "/v1/runs", "openRun", "Open a run", (*Server).openRun, may(api.RunExists, api.NotFound)),
		typed("GET", "/v1/runs", "listRuns", "List the caller's runs", (*Server).listRuns, draining),
		typed("POST", runPath+"/episodes", "createEpisode", "Create an episode, or get what is kept of its id", (*Server).createEpisode,
			body(bigBody), header(api.HeaderGeneration, "the run's generation that the driver was given"),
			may(api.UnknownWorld, api.UnknownPolicy, api.UnknownGrader, api.UnknownUser, api.UnknownApp, api.RefusedByPolicy, api.Fenced, api.SpecConflict,
				api.AttemptsExhausted, api.OverCapacity, api.Corrupt, api.NotFound, api.WrongState, api.WorldUnhealthy, api.Unsupported)),
		typed("GET", runPath+"/episodes", "listEpisodes", "List episodes in order of their ids", (*Server).listEpisodes, draining,
			param("prefix", "string", "of the ids"), param("after", "string", "an id to continue after"), param("max", "integer", "at most so many, 1 to 10000"),
			may(api.NotFound)),
		typed("POST", runPath+"/cancel", "cancelEpisodes", "Cancel live episodes whose ids have a prefix", (*Server).cancelEpisodes, draining, may(api.NotFound)),
	}
}

func episodeRoutes() []route {
	missing := may(api.NotFound, api.EpisodeDeleted)
	live := may(api.EpisodeEnded, api.Superseded, api.Fenced, api.WrongState)
	archive := []option{
		param("path", "string", "absolute inside the sandbox"), param("user", "string", "as whom"), missing, live,
		may(api.UnknownUser, api.RefusedByPolicy),
	}
	return []route{
		typed("GET", episodePath, "getEpisode", "An episode with all its attempts; looking renews no lease", (*Server).getEpisode, draining, agentToo, missing),
		typed("DELETE", episodePath, "deleteEpisode", "End an episode and forget it", (*Server).deleteEpisode, draining, missing),
		raw("POST", episodePath+"/calls", "call", "One tool call; with Accept: application/x-ndjson its output is streamed, the result last", (*Server).call,
			agentToo, draining, body(callBody),
			takes(reflect.TypeFor[api.CallSpec](), api.MediaJSON, api.MediaBytes), gives(reflect.TypeFor[api.CallResult](), api.MediaJSON, api.MediaStream),
			header(api.HeaderCall, "the call, when the body is its raw stdin"), missing, live,
			may(api.CallConflict, api.CallCancelled, api.UnknownTool, api.UnknownUser, api.RefusedByPolicy, api.OverCapacity, api.Unsupported)),
		typed("POST", episodePath+"/calls/cancel", "cancelCall", "End a numbered call that nobody waits for: its program is killed", (*Server).cancelCall,
			agentToo, draining, missing, live),
		raw("PUT", episodePath+"/archive", "upload", "Unpack a tar (plain, gzip or zstd) under a directory", (*Server).upload,
			append(archive, draining, takes(nil, api.MediaTar, api.MediaBytes), gives(reflect.TypeFor[api.CallResult](), api.MediaJSON), may(api.BadArchive))...),
		raw("GET", episodePath+"/archive", "download", "A file or tree as a tar", (*Server).download,
			append(archive, draining, gives(nil, api.MediaTar))...),
		typed("POST", episodePath+"/pause", "pauseEpisode", "Freeze an episode and its clocks", (*Server).pauseEpisode, draining, missing, live, may(api.Unsupported)),
		typed("POST", episodePath+"/resume", "resumeEpisode", "Let a paused episode go on", (*Server).resumeEpisode, draining, missing, live, may(api.Unsupported)),
		typed("POST", episodePath+"/fork", "forkEpisode", "Make episodes that go on from a live one's files", (*Server).forkEpisode, missing, live,
			header(api.HeaderGeneration, "the run's generation that the driver was given"),
			may(api.UnknownApp, api.SpecConflict, api.AttemptsExhausted, api.OverCapacity, api.Corrupt, api.Unsupported)),
		typed("POST", episodePath+"/keepalive", "keepAlive", "Renew a lease of kind ttl", (*Server).keepAlive, draining, missing, live),
	}
}

func endRoutes() []route {
	missing := may(api.NotFound, api.EpisodeDeleted)
	live := may(api.EpisodeEnded, api.Superseded, api.Fenced, api.WrongState)
	return []route{
		raw("POST", episodePath+"/finish", "finishEpisode", "End an attempt, with an answer and a payload, and score it", (*Server).finishEpisode,
			agentToo, draining, body(bigBody), takes(reflect.TypeFor[api.FinishSpec](), api.MediaJSON, api.MediaBytes),
			gives(reflect.TypeFor[api.Episode](), api.MediaJSON), header(api.HeaderFinish, "the rest, when the body is the raw payload"),
			missing, live, may(api.UnknownGrader)),
		typed("POST", episodePath+"/abort", "abortEpisode", "End an attempt because the client cannot go on", (*Server).abortEpisode, draining, agentToo, missing, live),
	}
}

func recordRoutes() []route {
	attempt := param("attempt", "integer", "unset is the last")
	missing := may(api.NotFound, api.EpisodeDeleted, api.WrongState)
	return []route{
		typed("GET", episodePath+"/changes", "getChanges", "What an ended attempt changed", (*Server).changes, draining, attempt, missing),
		raw("GET", episodePath+"/trajectory", "getTrajectory", "The calls of an attempt, one a line", (*Server).trajectory, draining, attempt, missing,
			gives(nil, api.MediaStream)),
		raw("GET", episodePath+"/exchanges", "getExchanges", "What the endpoints of an attempt carried, one exchange a line", (*Server).exchanges, draining, attempt, missing,
			gives(nil, api.MediaStream)),
		raw("GET", episodePath+"/payload", "getPayload", "The payload that finish was given", (*Server).payload, draining, attempt, missing,
			gives(nil, api.MediaBytes)),
	}
}

func scoreRoutes() []route {
	missing := may(api.NotFound, api.EpisodeDeleted)
	return []route{
		typed("POST", "/v1/graders", "putGrader", "Keep a grader; its name is its digest", (*Server).putGrader, body(bigBody), may(api.UnknownPolicy, api.RefusedByPolicy, api.Unsupported)),
		typed("GET", graderPath, "getGrader", "A grader by its digest", (*Server).getGrader, draining, may(api.UnknownGrader, api.NotFound)),
		typed("POST", episodePath+"/scores", "scoreEpisode", "Score a kept end state; runs no agent", (*Server).scoreEpisode, missing,
			may(api.UnknownGrader, api.NotRescorable, api.WrongState, api.OverCapacity, api.Corrupt)),
		typed("POST", episodePath+"/rewards", "writeReward", "Write a reward that the client itself found", (*Server).writeReward, missing, may(api.WrongState, api.EpisodeEnded)),
	}
}

func batchRoutes() []route {
	missing := may(api.NotFound)
	generation := header(api.HeaderGeneration, "the run's generation that the driver was given")
	after := param("after", "integer", "the last seq that is known")
	follow := param("follow", "boolean", "wait for more until the batch no longer runs")
	return []route{
		typed("POST", "/v1/batches", "createBatch", "Run many episodes: from a manifest, or as an open queue", (*Server).createBatch, body(bigBody), generation,
			may(api.UnknownWorld, api.UnknownPolicy, api.UnknownGrader, api.UnknownApp, api.UnknownTool, api.RefusedByPolicy, api.SpecConflict, api.RunExists, api.Fenced, api.OverCapacity, api.NotFound,
				api.Unsupported)),
		typed("GET", "/v1/batches", "listBatches", "List the caller's batches", (*Server).listBatches, draining),
		typed("GET", batchPath, "getBatch", "A batch, its counts and its latest groups", (*Server).getBatch, draining, missing),
		typed("POST", batchPath+"/episodes", "addToBatch", "Add lines to an open batch, all or none; lines that are there already stay", (*Server).addToBatch, body(bigBody), generation,
			missing, may(api.UnknownWorld, api.UnknownPolicy, api.UnknownGrader, api.UnknownApp, api.RefusedByPolicy, api.SpecConflict, api.WrongState, api.Fenced, api.Unsupported)),
		typed("POST", batchPath+"/seal", "sealBatch", "Add no more: the batch is done when each line has its result", (*Server).sealBatch, generation, missing, may(api.Fenced)),
		typed("POST", batchPath+"/resume", "resumeBatch", "Go on with a batch that does not run and is not done", (*Server).resumeBatch, generation,
			missing, may(api.WrongState, api.Fenced, api.OverCapacity)),
		typed("POST", batchPath+"/cancel", "cancelBatch", "Cancel what of a batch, or of some of its lines, has not ended", (*Server).cancelBatch, draining, generation,
			missing, may(api.Fenced)),
		raw("GET", batchPath+"/results", "batchResults", "Results in order of completion", (*Server).batchResults, draining, missing, after, follow,
			gives(reflect.TypeFor[api.BatchResult](), api.MediaStream)),
		raw("GET", batchPath+"/groups", "batchGroups", "Complete groups with their results, in the order in which they were", (*Server).batchGroups, draining, missing,
			after, follow, gives(reflect.TypeFor[api.GroupResult](), api.MediaStream)),
		raw("GET", batchPath+"/work", "batchWork", "What the batch asks of the client, until it no longer runs", (*Server).batchWork, generation,
			missing, may(api.WrongState, api.Fenced, api.Superseded),
			param("lease", "string", "the lease of the client's process; unset: this connection"), param("most", "integer", "at most so many at a time, 1 to 4096"),
			gives(reflect.TypeFor[api.Work](), api.MediaStream)),
		typed("POST", batchPath+"/rewards", "rewardInBatch", "Write a reward that the batch waits for", (*Server).rewardInBatch, draining, generation,
			missing, may(api.WrongState, api.EpisodeDeleted, api.Fenced)),
		typed("POST", batchPath+"/scores", "scoreBatch", "Score every end state of a batch with other graders; runs no agent", (*Server).scoreBatch,
			missing, may(api.UnknownGrader, api.NotRescorable, api.WrongState, api.OverCapacity, api.InUse)),
	}
}

func judgeRoutes() []route {
	return []route{
		raw("POST", "/v1/judge", "judge", "Judge code by test cases; with Accept: application/x-ndjson cases come as they end, the result last", (*Server).judge,
			body(callBody), takes(reflect.TypeFor[api.JudgeSpec](), api.MediaJSON), gives(reflect.TypeFor[api.JudgeResult](), api.MediaJSON, api.MediaStream),
			may(api.UnknownWorld, api.NoTool, api.OverCapacity, api.Corrupt)),
		raw("POST", "/run_code", "runCode", "Run code once, as SandboxFusion does; also on the port of --run-code-port", (*Server).serveFusion,
			body(bigBody), takes(nil, api.MediaJSON), gives(nil, api.MediaJSON)),
		raw("POST", "/submit", "submit", "Judge a completion by the test cases in config.provided_data, as SandboxFusion does", (*Server).serveFusion,
			body(bigBody), takes(nil, api.MediaJSON), gives(nil, api.MediaJSON)),
		raw("GET", "/v1/ping", "ping", "\"pong\", as SandboxFusion answers", (*Server).serveFusion, draining, gives(nil, api.MediaJSON)),
		typed("GET", "/v1/languages", "listLanguages", "List the languages that the judge knows", (*Server).listLanguages, draining),
	}
}

func simulatorRoutes() []route {
	missing := may(api.NotFound)
	return []route{
		typed("POST", "/v1/simulators", "openSimulator", "Make sure that a kind of environment works, and keep sandboxes ready for it", (*Server).openSimulator,
			may(api.UnknownWorld, api.UnknownPolicy, api.UnknownUser, api.RefusedByPolicy, api.PrepareFailed, api.OverCapacity, api.Corrupt, api.WorldUnhealthy, api.Unsupported)),
		typed("GET", simPath, "getSimulator", "An open simulator", (*Server).getSimulator, draining, missing, may(api.UnknownWorld, api.UnknownPolicy)),
		raw("GET", simPath+"/envs", "openEnvs", "Upgrade the connection to lines that make, reset and step environments (docs/simulators.md); they end with it", (*Server).openEnvs,
			missing, may(api.UnknownGrader, api.Fenced, api.SpecConflict, api.AttemptsExhausted, api.OverCapacity, api.EpisodeEnded, api.Superseded,
				api.InUse, api.WrongState, api.WorldUnhealthy, api.UnknownWorld, api.UnknownPolicy, api.Corrupt),
			header("Upgrade", api.EnvsProtocol), gives(reflect.TypeFor[api.EnvReply](), api.MediaStream), status(http.StatusSwitchingProtocols)),
		typed("GET", "/v1/snapshots", "listSnapshots", "List the caller's snapshots of environments in order of their ids", (*Server).listSnapshots, draining,
			param("after", "string", "an id to continue after"), param("max", "integer", "at most so many, 1 to 10000")),
		typed("GET", snapshotPath, "getSnapshot", "A snapshot of an environment", (*Server).getSnapshot, draining, missing),
		typed("DELETE", snapshotPath, "dropSnapshot", "Forget a snapshot; environments that were restored from it go on", (*Server).dropSnapshot, draining, missing),
	}
}

func datasetRoutes() []route {
	missing := may(api.UnknownDataset, api.Corrupt)
	return []route{
		raw("POST", "/v1/datasets", "putDataset", "Keep a file's problems; its name is the digest of its canonical form", (*Server).putDataset,
			body(datasetBody), takes(nil, api.MediaBytes, api.MediaJSON, api.MediaStream), gives(reflect.TypeFor[api.Dataset](), api.MediaJSON),
			param("format", "string", "jsonl (default), json, csv or parquet"), param("name", "string", "a name to point at it"),
			param("id", "string", "the column of ids, id by default"), param("prompt", "string", "the column of prompts"),
			param("answer", "string", "the column of answers"), param("tests", "string", "the column of tests")),
		typed("GET", "/v1/datasets", "listDatasets", "List the data sets", (*Server).listDatasets, draining, missing),
		typed("GET", datasetPath, "getDataset", "A data set by digest or name", (*Server).getDataset, draining, missing),
		typed("DELETE", datasetPath, "removeDataset", "Remove a data set and its names", (*Server).removeDataset, draining, missing),
		typed("GET", datasetPath+"/sample", "sampleDataset", "The problems of an iteration: a function of these parameters alone", (*Server).sampleDataset, draining, missing,
			param("iteration", "integer", "from 0"), param("n", "integer", "problems of one iteration"), param("seed", "integer", "of the orders"),
			param("order", "string", "shuffle (default: each epoch in an order of its own) or rotate")),
		raw("POST", "/v1/scores", "scoreItems", "Score completions; with Accept: application/x-ndjson scores come as they are found", (*Server).scoreItems,
			body(bigBody), takes(reflect.TypeFor[api.ScoreItems](), api.MediaJSON), gives(reflect.TypeFor[api.ItemScores](), api.MediaJSON, api.MediaStream),
			missing, may(api.UnknownWorld, api.NoTool, api.OverCapacity)),
	}
}
