package fusion

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/sync/errgroup"

	"github.com/paddock-run/paddock/runner/judge"
)

// maxSubmitCases bounds the test cases of one submission.
const maxSubmitCases = 1000

// submitRequest is the body of /submit.
type submitRequest struct {
	Dataset    string          `json:"dataset"`
	ID         json.RawMessage `json:"id"`
	Completion *string         `json:"completion"`
	Config     struct {
		Language       *string         `json:"language"`
		CompileTimeout *float64        `json:"compile_timeout"`
		RunTimeout     *float64        `json:"run_timeout"`
		ExtractLogic   *string         `json:"custom_extract_logic"`
		Data           json.RawMessage `json:"provided_data"`
		Extra          struct {
			RunAll bool `json:"run_all_cases"`
		} `json:"extra"`
	} `json:"config"`
}

// stdioTest is one test case: the streams by name.
type stdioTest struct {
	Input  map[string]string `json:"input"`
	Output map[string]string `json:"output"`
}

// caseResult is one test case's part of the answer.
type caseResult struct {
	Passed bool        `json:"passed"`
	Info   runResponse `json:"exec_info"`
	Test   stdioTest   `json:"test_info"`
}

// submitResponse is the answer to /submit.
type submitResponse struct {
	ID            json.RawMessage `json:"id"`
	Accepted      bool            `json:"accepted"`
	ExtractedCode string          `json:"extracted_code"`
	FullCode      *string         `json:"full_code"`
	TestCode      *string         `json:"test_code"`
	Tests         []caseResult    `json:"tests"`
	ExtractedType *string         `json:"extracted_type"`
	Extra         *struct{}       `json:"extra"`
}

// submit judges a completion by the test cases that the request itself brings: this daemon
// holds no data sets.
func (h *Handler) submit(w http.ResponseWriter, r *http.Request) {
	var in submitRequest
	if !h.decode(w, r, &in) {
		return
	}
	if in.Completion == nil || len(in.ID) == 0 {
		invalid(w, problem{Type: "missing", Loc: []string{"body", "completion"}, Msg: "Field required, as is id"})
		return
	}
	tests, err := in.tests()
	if err != nil {
		answer(w, http.StatusBadRequest, map[string]string{"detail": err.Error()})
		return
	}
	out := submitResponse{ID: in.ID, ExtractedCode: extract(*in.Completion, *in.Config.Language)}
	out.Tests, err = h.all(r, &in, out.ExtractedCode, tests)
	if err != nil {
		h.fail(w, r, err)
		return
	}
	if !in.Config.Extra.RunAll { // what follows the first failure is left out
		if i := slices.IndexFunc(out.Tests, func(c caseResult) bool { return !c.Passed }); i >= 0 {
			out.Tests = out.Tests[:i+1]
		}
	}
	out.Accepted = !slices.ContainsFunc(out.Tests, func(c caseResult) bool { return !c.Passed })
	answer(w, http.StatusOK, out)
}

// tests reads the cases: of the one row that is given, or of the row of that id; the field
// test is a list, or a text that holds one.
func (in *submitRequest) tests() ([]stdioTest, error) {
	switch {
	case in.Config.Language == nil || !known(*in.Config.Language):
		return nil, fmt.Errorf("config.language must name a known language")
	case in.Config.ExtractLogic != nil:
		return nil, fmt.Errorf("config.custom_extract_logic is not run here; send the code in a fence")
	case len(in.Config.Data) == 0 || string(in.Config.Data) == "null":
		return nil, fmt.Errorf("data set %q is not here; send its row as config.provided_data", in.Dataset)
	}
	type row struct {
		ID   json.RawMessage `json:"id"`
		Test json.RawMessage `json:"test"`
	}
	rows := []row{{}}
	if err := json.Unmarshal(in.Config.Data, &rows); err != nil {
		rows = []row{{}}
		if err := json.Unmarshal(in.Config.Data, &rows[0]); err != nil {
			return nil, fmt.Errorf("config.provided_data is no row and no list of rows: %w", err)
		}
	}
	i := 0
	if len(rows) != 1 {
		i = slices.IndexFunc(rows, func(r row) bool { return string(r.ID) == string(in.ID) })
	}
	if i < 0 {
		return nil, fmt.Errorf("config.provided_data has no row with id %s", in.ID)
	}
	data := rows[i].Test
	var inner string
	if json.Unmarshal(data, &inner) == nil {
		data = []byte(inner)
	}
	var tests []stdioTest
	if err := json.Unmarshal(data, &tests); err != nil {
		return nil, fmt.Errorf("the row's test is no list of {input, output}: %w", err)
	}
	if len(tests) == 0 || len(tests) > maxSubmitCases {
		return nil, fmt.Errorf("the row has %d test cases, not 1 to %d", len(tests), maxSubmitCases)
	}
	return tests, nil
}

func (h *Handler) all(r *http.Request, in *submitRequest, code string, tests []stdioTest) ([]caseResult, error) {
	out := make([]caseResult, len(tests))
	g, ctx := errgroup.WithContext(r.Context())
	g.SetLimit(judge.DefaultParallel)
	for i, t := range tests {
		g.Go(func() error {
			stdin := t.Input["stdin"]
			res, err := h.run(ctx, &runRequest{
				Code: &code, Language: in.Config.Language, Stdin: &stdin, CompileTimeout: in.Config.CompileTimeout, RunTimeout: in.Config.RunTimeout,
			})
			if err != nil {
				return err
			}
			out[i] = caseResult{Info: res, Test: t}
			out[i].Passed = res.Status == success && sameLines(*res.RunResult.Stdout, t.Output["stdout"])
			return nil
		})
	}
	return out, g.Wait()
}

// sameLines compares outputs as such data sets mean them: line by line, without case and
// outer white space, numbers within a hundred-thousandth.
func sameLines(got, want string) bool {
	a, b := strings.Split(strings.TrimSpace(got), "\n"), strings.Split(strings.TrimSpace(want), "\n")
	return slices.EqualFunc(a, b, func(x, y string) bool {
		x, y = strings.ToLower(strings.TrimSpace(x)), strings.ToLower(strings.TrimSpace(y))
		if x == y {
			return true
		}
		n, errX := strconv.ParseFloat(x, 64)
		m, errY := strconv.ParseFloat(y, 64)
		return errX == nil && errY == nil && math.Abs(n-m)/max(math.Abs(m), 1e-10) < 1e-5
	})
}

var (
	fence = regexp.MustCompile("(?s)```([^\n]*)\n(.*?)\n\\s*```")
	open  = regexp.MustCompile("(?s)```([^\n]*)\n(.*)")
)

// extract finds the code in a completion: the first fence of the language, else the first
// of any, else what follows a fence that is never closed.
func extract(completion, language string) string {
	blocks := fence.FindAllStringSubmatch(completion, -1)
	if len(blocks) == 0 {
		blocks = open.FindAllStringSubmatch(completion, 1)
	}
	for _, b := range blocks {
		if judge.SameLanguage(strings.ToLower(strings.TrimSpace(b[1])), language) {
			return b[2]
		}
	}
	if len(blocks) > 0 {
		return blocks[0][2]
	}
	return ""
}

func known(language string) bool { return judge.SameLanguage(language, language) }

// text is output as JSON can hold it.
func text(b []byte) string {
	if utf8.Valid(b) {
		return string(b)
	}
	return strings.ToValidUTF8(string(b), "\uFFFD")
}
