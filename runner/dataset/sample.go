package dataset

import (
	"crypto/sha256"
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
)

// The orders of a sampling.
const (
	// Shuffle takes each epoch in an order of its own, drawn from the seed.
	Shuffle = "shuffle"
	// Rotate takes every epoch in the order of the set.
	Rotate = "rotate"
)

// MaxSample bounds the problems of one iteration.
const MaxSample = 100_000

// SampleSpec asks for the problems of one iteration.
type SampleSpec struct {
	// Iteration counts from 0. It takes the problems Iteration*N to Iteration*N+N-1 of the
	// epochs one after another, so one that lies over the end of an epoch has the first of
	// the next.
	Iteration int64
	N         int
	Seed      uint64
	// Order is Shuffle unless set.
	Order string
}

// Sampled are the problems of one iteration.
type Sampled struct {
	Problems []Problem
	// Epoch is that of the first of them, from 0; Position is how many of that epoch came before.
	Epoch    int64
	Position int
}

// Sample returns the problems of an iteration: a function of the set, N, Seed, Order and
// Iteration, the same on every host and in every version of paddock.
func (s *Set) Sample(spec SampleSpec) (Sampled, error) {
	switch {
	case spec.N < 1 || spec.N > MaxSample:
		return Sampled{}, badField("n", "%d is not in 1 to %d", spec.N, MaxSample)
	case spec.Iteration < 0 || spec.Iteration > math.MaxInt64/int64(spec.N)-1:
		return Sampled{}, badField("iteration", "%d is out of range", spec.Iteration)
	case spec.Order != "" && spec.Order != Shuffle && spec.Order != Rotate:
		return Sampled{}, badField("order", "%q is not %s or %s", spec.Order, Shuffle, Rotate)
	}
	size := int64(len(s.Problems))
	first := spec.Iteration * int64(spec.N)
	out := Sampled{Epoch: first / size, Position: int(first % size), Problems: make([]Problem, 0, spec.N)}
	var order []int32
	epoch := int64(-1)
	for at := first; at < first+int64(spec.N); at++ {
		if e := at / size; e != epoch {
			epoch = e
			order = s.order(spec, e)
		}
		i := int(at % size)
		if order != nil {
			i = int(order[i])
		}
		out.Problems = append(out.Problems, s.Problems[i])
	}
	return out, nil
}

// order is an epoch's order, nil for that of the set. The shuffle is written out here
// because the standard library's may change with its version; the generator's stream does
// not.
func (s *Set) order(spec SampleSpec, epoch int64) []int32 {
	if spec.Order == Rotate {
		return nil
	}
	r := rand.NewChaCha8(sha256.Sum256(fmt.Appendf(nil, "paddock-epoch/1 %s %d %d", s.Digest, spec.Seed, epoch)))
	order := make([]int32, len(s.Problems))
	for i := range order {
		order[i] = int32(i)
	}
	for i := len(order) - 1; i > 0; i-- {
		j := below(r, uint64(i+1))
		order[i], order[j] = order[j], order[i]
	}
	return order
}

// below draws from 0 to n-1, all alike.
func below(r *rand.ChaCha8, n uint64) uint64 {
	for {
		hi, lo := bits.Mul64(r.Uint64(), n)
		if lo >= -n%n {
			return hi
		}
	}
}
