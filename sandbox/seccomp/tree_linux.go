package seccomp

import (
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// emitTree emits a balanced search over spans, of which the first starts at 0: pure
// comparisons first, then what looks at arguments. The number is in the accumulator.
func emitTree(a *assembler, spans []span) {
	var blocks []block
	leaf := func(v verdict) label {
		if v.plain() {
			return a.retLabel(v.ret)
		}
		b := block{at: a.newLabel(), verdict: v}
		blocks = append(blocks, b)
		return b.at
	}
	if len(spans) == 1 {
		a.goTo(leaf(spans[0].verdict))
	} else {
		emitSearch(a, spans, leaf)
	}
	for _, b := range blocks {
		a.mark(b.at)
		emitVerdict(a, b.verdict)
	}
}

// block is the code of a verdict that looks at arguments.
type block struct {
	at label
	verdict
}

func emitSearch(a *assembler, spans []span, leaf func(verdict) label) {
	mid := len(spans) / 2
	left, right := spans[:mid], spans[mid:]
	switch {
	case len(left) == 1 && len(right) == 1:
		a.jump(unix.BPF_JGE, right[0].low, leaf(right[0].verdict), leaf(left[0].verdict))
	case len(left) == 1:
		a.jump(unix.BPF_JGE, right[0].low, next, leaf(left[0].verdict))
		emitSearch(a, right, leaf)
	default:
		// len(right) >= len(left), so the right side is a search too.
		far := a.newLabel()
		a.jump(unix.BPF_JGE, right[0].low, far, next)
		emitSearch(a, left, leaf)
		a.mark(far)
		emitSearch(a, right, leaf)
	}
}

// emitVerdict emits the checks of a verdict; each ends in a shared return.
func emitVerdict(a *assembler, v verdict) {
	if v.ioctl {
		emitDeniedIoctls(a)
	}
	for rules := v.rules; len(rules) > 0; {
		n := sameWord(rules)
		if n > 1 {
			emitOneOf(a, rules[:n])
		} else {
			emitRule(a, rules[0])
		}
		rules = rules[n:]
	}
	a.goTo(a.retLabel(v.ret))
}

// sameWord counts the rules at the front that compare one and the same word of one
// argument for equality and give one answer, such as a list of socket families.
func sameWord(rules []rule) int {
	first := rules[0]
	if len(first.args) != 1 || first.args[0].Op != specs.OpEqualTo && first.args[0].Op != specs.OpMaskedEqual {
		return 1
	}
	like := word(first.args[0])
	n := slices.IndexFunc(rules, func(r rule) bool {
		return r.ret != first.ret || len(r.args) != 1 || r.args[0].Op != first.args[0].Op || word(r.args[0]) != like
	})
	if n < 0 {
		return len(rules)
	}
	return n
}

// wordOf is what equality rules that can share their loads have in common.
type wordOf struct {
	index uint
	mask  uint64
	high  uint32
}

func word(arg specs.LinuxSeccompArg) wordOf {
	mask, value := maskAndValue(arg)
	return wordOf{index: arg.Index, mask: mask, high: uint32(value >> 32)}
}

// maskAndValue reads EQ as MASKED_EQ with all bits.
func maskAndValue(arg specs.LinuxSeccompArg) (mask, value uint64) {
	if arg.Op == specs.OpMaskedEqual {
		return arg.Value, arg.ValueTwo
	}
	return ^uint64(0), arg.Value
}

// emitOneOf emits rules that sameWord found.
func emitOneOf(a *assembler, rules []rule) {
	fail := a.newLabel()
	w := word(rules[0].args[0])
	emitHigh(a, w, fail)
	loadMasked(a, argWord(w.index, false), uint32(w.mask))
	for _, r := range rules {
		_, value := maskAndValue(r.args[0])
		a.jump(unix.BPF_JEQ, uint32(value), a.retLabel(r.ret), next)
	}
	a.mark(fail)
}

func emitRule(a *assembler, r rule) {
	fail := a.newLabel()
	for _, arg := range r.args {
		emitCompare(a, arg, fail)
	}
	a.goTo(a.retLabel(r.ret))
	a.mark(fail)
}

// emitHigh checks the high word of an equality, where it has bits to check.
func emitHigh(a *assembler, w wordOf, fail label) {
	if uint32(w.mask>>32) == 0 && w.high == 0 {
		return
	}
	loadMasked(a, argWord(w.index, true), uint32(w.mask>>32))
	a.jump(unix.BPF_JEQ, w.high, next, fail)
}

func loadMasked(a *assembler, off, mask uint32) {
	a.load(off)
	if mask != ^uint32(0) {
		a.and(mask)
	}
}

// emitCompare goes on where the condition holds and jumps to fail where it does not.
// Arguments are of 64 bits and the machine of 32: the high words decide unless equal.
func emitCompare(a *assembler, arg specs.LinuxSeccompArg, fail label) {
	high, low := uint32(arg.Value>>32), uint32(arg.Value)
	holds := a.newLabel()
	switch arg.Op {
	case specs.OpEqualTo, specs.OpMaskedEqual:
		w := word(arg)
		_, value := maskAndValue(arg)
		emitHigh(a, w, fail)
		loadMasked(a, argWord(arg.Index, false), uint32(w.mask))
		a.jump(unix.BPF_JEQ, uint32(value), next, fail)
	case specs.OpNotEqual:
		a.load(argWord(arg.Index, true))
		a.jump(unix.BPF_JEQ, high, next, holds)
		a.load(argWord(arg.Index, false))
		a.jump(unix.BPF_JEQ, low, fail, next)
	case specs.OpGreaterEqual:
		emitOrder(a, arg, unix.BPF_JGE, holds, fail)
	case specs.OpGreaterThan:
		emitOrder(a, arg, unix.BPF_JGT, holds, fail)
	case specs.OpLessThan:
		emitOrder(a, arg, unix.BPF_JGE, fail, holds)
	case specs.OpLessEqual:
		emitOrder(a, arg, unix.BPF_JGT, fail, holds)
	}
	a.mark(holds)
}

// emitOrder jumps to yes where the argument is greater than the value, or equal and op
// is JGE, else to no.
func emitOrder(a *assembler, arg specs.LinuxSeccompArg, op uint16, yes, no label) {
	high, low := uint32(arg.Value>>32), uint32(arg.Value)
	a.load(argWord(arg.Index, true))
	a.jump(unix.BPF_JGT, high, yes, next)
	a.jump(unix.BPF_JEQ, high, next, no)
	a.load(argWord(arg.Index, false))
	a.jump(op, low, yes, no)
}
