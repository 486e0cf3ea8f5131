package docker

import (
	"os"
	"runtime"

	"github.com/paddock-run/paddock/sandbox/native"
)

// entryVariable is set in the environment of a launcher process.
const entryVariable = "PADDOCK_DOCKER_LAUNCHER"

// init turns a process started by New into a launcher before anything else of the program
// runs, on the main thread.
func init() {
	arg := os.Getenv(entryVariable)
	if arg == "" {
		return
	}
	runtime.LockOSThread()
	os.Exit(native.Main(arg, newStarter))
}
