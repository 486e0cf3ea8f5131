package doctor

import (
	"debug/elf"
	"errors"
)

// isStatic says whether an ELF file names no program interpreter.
func isStatic(path string) (static bool, err error) {
	f, err := elf.Open(path)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return false, nil
		}
	}
	return true, nil
}
