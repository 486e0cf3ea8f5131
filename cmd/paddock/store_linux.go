package main

import (
	"context"
	"errors"

	"github.com/paddock-run/paddock/runner"
)

// worldStore is the store of worlds with its lock.
type worldStore interface {
	runner.Worlds
	Close() error
}

func openStore(context.Context, string) (worldStore, error) {
	return nil, errors.New("the store of worlds is not built yet")
}
