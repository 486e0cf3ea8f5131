package daemon

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"

	"github.com/paddock-run/paddock/api"
	"github.com/paddock-run/paddock/runner/simulator"
)

// simEnv steps a simulator.
type simEnv struct {
	v     openEnvView
	env   *simulator.Env
	id    string
	steps int64
}

func (e *simEnv) state() (string, int64) { return e.id, e.steps }

func (e *simEnv) reset(ctx context.Context, in openEnvReset) (openEnvStep, error) {
	if e.env != nil && in.Episode != "" && in.Episode != e.id {
		if err := e.close(ctx); err != nil {
			return openEnvStep{}, err
		}
	}
	if e.env == nil {
		env, err := e.v.s.sims.Make(ctx, e.v.owner, e.v.name, simulator.EnvSpec{ID: in.Episode, Labels: map[string]string{"by": "openenv"}})
		if err != nil {
			return openEnvStep{}, err
		}
		key, _, _ := env.Key()
		e.env, e.id = env, key.ID
	}
	e.steps = 0
	res, err := e.env.Reset(ctx, in.Seed, in.Options)
	return e.observed(res, err, true)
}

func (e *simEnv) step(ctx context.Context, action map[string]json.RawMessage) (openEnvStep, error) {
	if e.env == nil {
		return openEnvStep{}, needsReset()
	}
	raw, ok := action["action"]
	if !ok {
		return openEnvStep{}, badAction("want the field action")
	}
	res, err := e.env.Step(ctx, compact(raw))
	return e.observed(res, err, false)
}

func (e *simEnv) observed(res simulator.Result, err error, first bool) (openEnvStep, error) {
	if err != nil {
		return openEnvStep{}, err
	}
	if res.Error != nil && res.Ended == nil {
		return openEnvStep{}, badAction("%s: %s", res.Error.Kind, res.Error.Detail)
	}
	out := openEnvStep{Observation: map[string]any{}}
	if res.Ended != nil {
		e.env = nil // the next reset makes another
		out.Reward, out.Done = &res.Reward, true
		out.Metadata = map[string]any{"status": res.Ended.End.Status, "cause": res.Ended.End.Cause, "valid": res.Ended.Valid}
		if res.Error != nil {
			out.Metadata["error"] = res.Error.Kind + ": " + res.Error.Detail
		}
		return out, nil
	}
	for name, raw := range map[string]json.RawMessage{"observation": res.Observation, "info": res.Info} {
		if len(raw) == 0 {
			continue
		}
		var v any
		if err := json.Unmarshal(raw, &v); err != nil {
			return openEnvStep{}, err
		}
		if out.Observation[name], err = plainValue(v, res.Frames, res.Raw); err != nil {
			return openEnvStep{}, err
		}
	}
	if !first {
		e.steps++
		out.Reward, out.Done = &res.Reward, res.Terminated || res.Truncated
		out.Metadata = map[string]any{"terminated": res.Terminated, "truncated": res.Truncated}
	}
	return out, nil
}

func (e *simEnv) close(ctx context.Context) error {
	if e.env == nil {
		return nil
	}
	env := e.env
	e.env = nil
	_, err := env.Close(ctx)
	return err
}

// plainValue makes the arrays of a value lists, which any client can read.
func plainValue(v any, frames []int64, raw []byte) (any, error) {
	switch v := v.(type) {
	case []any:
		for i := range v {
			var err error
			if v[i], err = plainValue(v[i], frames, raw); err != nil {
				return nil, err
			}
		}
	case map[string]any:
		if dtype, ok := v["$array"].(string); ok {
			return plainArray(dtype, v, frames, raw)
		}
		for k := range v {
			var err error
			if v[k], err = plainValue(v[k], frames, raw); err != nil {
				return nil, err
			}
		}
	}
	return v, nil
}

func plainArray(dtype string, v map[string]any, frames []int64, raw []byte) (any, error) {
	var data []byte
	if text, ok := v["b64"].(string); ok {
		var err error
		if data, err = base64.StdEncoding.DecodeString(text); err != nil {
			return nil, err
		}
	} else if n, ok := v["frame"].(float64); ok {
		var from int64
		for i, length := range frames {
			if i == int(n) {
				data = raw[from : from+length]
			}
			from += length
		}
	}
	dims, _ := v["shape"].([]any)
	shape := make([]int, len(dims))
	for i, d := range dims {
		n, _ := d.(float64)
		shape[i] = int(n)
	}
	size, number := numberOf(dtype)
	if size == 0 || !fits(shape, size, len(data)) {
		return nil, &api.Error{Kind: api.TooLarge, Detail: fmt.Sprintf("an array %.16s %.8v of %d bytes is not told as a list", dtype, shape, len(data))}
	}
	return nested(shape, func() any {
		if len(data) < size {
			return nil
		}
		n := number(data)
		data = data[size:]
		return n
	}), nil
}

// fits says whether an array's shape is that of its bytes, and has no more places than are
// told. Only observations were held against their space; what else a program says is hostile.
func fits(shape []int, size, have int) bool {
	if len(shape) > maxPlainDims {
		return false
	}
	places, numbers := 1, 1
	for _, d := range shape {
		if d < 0 || d > maxPlainNumbers {
			return false
		}
		places *= max(d, 1)
		numbers *= d
		if places > maxPlainNumbers {
			return false
		}
	}
	return numbers*size == have
}

func nested(shape []int, next func() any) any {
	if len(shape) == 0 {
		return next()
	}
	list := make([]any, 0, min(shape[0], maxPlainNumbers))
	for range shape[0] {
		list = append(list, nested(shape[1:], next))
	}
	return list
}

// numberOf reads one number of an array's type.
func numberOf(dtype string) (size int, read func([]byte) any) {
	le := binary.LittleEndian
	finite := func(f float64) any {
		if math.IsNaN(f) || math.IsInf(f, 0) {
			return nil // JSON has no such number
		}
		return f
	}
	switch dtype {
	case "|b1":
		return 1, func(b []byte) any { return b[0] != 0 }
	case "|i1":
		return 1, func(b []byte) any { return int8(b[0]) } //nolint:gosec // its two's complement
	case "|u1":
		return 1, func(b []byte) any { return int(b[0]) }
	case "<i2":
		return 2, func(b []byte) any { return int16(le.Uint16(b)) } //nolint:gosec // its two's complement
	case "<u2":
		return 2, func(b []byte) any { return le.Uint16(b) }
	case "<i4":
		return 4, func(b []byte) any { return int32(le.Uint32(b)) } //nolint:gosec // its two's complement
	case "<u4":
		return 4, func(b []byte) any { return le.Uint32(b) }
	case "<i8":
		return 8, func(b []byte) any { return int64(le.Uint64(b)) } //nolint:gosec // its two's complement
	case "<u8":
		return 8, func(b []byte) any { return le.Uint64(b) }
	case "<f4":
		return 4, func(b []byte) any { return finite(float64(math.Float32frombits(le.Uint32(b)))) }
	case "<f8":
		return 8, func(b []byte) any { return finite(math.Float64frombits(le.Uint64(b))) }
	}
	return 0, nil
}
