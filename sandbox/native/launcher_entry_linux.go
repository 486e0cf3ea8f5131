package native

import (
	"os"
	"runtime"
)

// entryVariable is set in the environment of a launcher process.
const entryVariable = "PADDOCK_NATIVE_LAUNCHER"

// init turns a process started by New into a launcher before anything else of the
// program runs. It pins the main goroutine: a goroutine that is locked to the main thread
// and ends there would leave that thread in the cgroups it joined (facts: rmdir is EBUSY
// for ever).
func init() {
	dir := os.Getenv(entryVariable)
	if dir == "" {
		return
	}
	runtime.LockOSThread()
	os.Exit(launcherMain(dir, nil))
}
