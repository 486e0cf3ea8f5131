package egress

import (
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestATargetThatAnswers5xxItselfIsTheClients: the program's request is answered so, and every
// one of the daemon's, to the path that the client named.
func TestATargetThatAnswers5xxItselfIsTheClients(t *testing.T) {
	var asked atomic.Int32
	target := web(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet && r.URL.Path == "/health" && r.Header.Get("User-Agent") == "paddock" {
			asked.Add(1)
		}
		http.Error(w, "no upstream", http.StatusBadGateway)
	})
	d := newDoor(t, target)
	to, err := ParseTarget(target)
	if err != nil {
		t.Fatal(err)
	}
	if to, err = to.WithHealth("/health"); err != nil {
		t.Fatal(err)
	}
	d.Lead(to)
	status, body := d.post(t, "/v1/completions", "x")
	if status != http.StatusBadGateway || !strings.Contains(body, "endpoint_down") {
		t.Errorf("answer %d %q", status, body)
	}
	if all := d.downs(); len(all) != 1 || !strings.Contains(all[0], target) || !strings.Contains(all[0], "GET /health is answered 502") {
		t.Errorf("down: %q", all)
	}
	if asked.Load() < 2 {
		t.Errorf("it was asked %d times, want it to be tried again", asked.Load())
	}
}

// TestWhatARequestBringsAboutIsNotTheClients: a poisonous request is answered 500 and the
// target works; how often it is asked about that is bounded.
func TestWhatARequestBringsAboutIsNotTheClients(t *testing.T) {
	var asked atomic.Int32
	d := newDoor(t, web(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			asked.Add(1)
			http.NotFound(w, r)
			return
		}
		http.Error(w, "too long", http.StatusInternalServerError)
	}))
	for range 20 {
		if status, body := d.post(t, "/", "poison"); status != http.StatusInternalServerError || body != "too long\n" {
			t.Errorf("answer %d %q", status, body)
		}
	}
	if n := asked.Load(); n < 1 || n > 5 || len(d.downs()) != 0 {
		t.Errorf("asked %d times, down %q", n, d.downs())
	}
	waitFor(t, func() bool { return len(d.exchanges()) == 20 })
	if x := d.exchanges()[0]; x.Status != http.StatusInternalServerError || x.Answer.Text != "too long\n" {
		t.Errorf("recorded %+v", x)
	}
}

// TestAFloodThatATargetRefusesIsNotTheClients: a target that takes few requests at a time
// answers 503 while a program holds them, to the daemon as to anybody. It is asked with
// nothing of the sandbox's under way, and so with room: also where what is held came through
// another endpoint that leads there, or through a raw one.
func TestAFloodThatATargetRefusesIsNotTheClients(t *testing.T) {
	for name, second := range map[string]func(*Endpoint){
		"by itself": nil, "another endpoint": func(*Endpoint) {}, "a raw endpoint": func(e *Endpoint) { e.Raw = true },
	} {
		t.Run(name, func(t *testing.T) { floodIsNotTheClients(t, second) })
	}
}

func floodIsNotTheClients(t *testing.T, second func(*Endpoint)) {
	t.Helper()
	const room = 3
	var held atomic.Int32
	target := web(t, func(w http.ResponseWriter, r *http.Request) {
		defer held.Add(-1)
		if held.Add(1) > room {
			http.Error(w, "no room", http.StatusServiceUnavailable)
			return
		}
		if r.Method == http.MethodGet {
			return
		}
		_, _ = io.Copy(io.Discard, r.Body) // or the end of the connection is not seen
		_, _ = io.WriteString(w, "held")
		w.(http.Flusher).Flush()
		<-r.Context().Done() // a stream without end
	})
	one := &Doubt{}
	shared := func(e *Endpoint) { e.Patience, e.Doubt = 20*time.Second, one }
	d := newDoor(t, target, shared)
	holds := d
	if second != nil {
		holds = newDoor(t, target, shared, second)
	}
	var streams sync.WaitGroup
	defer streams.Wait()
	for range room {
		streams.Go(func() { holds.post(t, "/", "hold") })
	}
	waitFor(t, func() bool { return held.Load() == room })
	if status, body := d.post(t, "/", "one more"); status != http.StatusServiceUnavailable || body != "no room\n" {
		t.Errorf("answer %d %q", status, body)
	}
	if len(d.downs()) != 0 {
		t.Errorf("down: %q", d.downs())
	}
}

// TestATargetThatComesBackIsNotDown: what was answered is passed on, and nothing ends.
func TestATargetThatComesBackIsNotDown(t *testing.T) {
	var n atomic.Int32
	d := newDoor(t, web(t, func(w http.ResponseWriter, _ *http.Request) {
		if n.Add(1) <= 3 {
			http.Error(w, "starting", http.StatusServiceUnavailable)
		}
	}), func(e *Endpoint) { e.Patience = 20 * time.Second })
	if status, body := d.post(t, "/", "x"); status != http.StatusServiceUnavailable || body != "starting\n" {
		t.Errorf("answer %d %q", status, body)
	}
	if status, _ := d.post(t, "/", "x"); status != http.StatusOK || len(d.downs()) != 0 {
		t.Errorf("the next: %d, down %q", status, d.downs())
	}
}

// TestATargetThatDoesNotAnswerInTimeIsNotDown: who is busy may be so with what a program asked.
func TestATargetThatDoesNotAnswerInTimeIsNotDown(t *testing.T) {
	d := newDoor(t, web(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			panic(http.ErrAbortHandler) // the connection ends without an answer
		}
		http.Error(w, "busy", http.StatusInternalServerError)
	}))
	if status, _ := d.post(t, "/", "x"); status != http.StatusInternalServerError || len(d.downs()) != 0 {
		t.Errorf("answer %d, down %q", status, d.downs())
	}
}

func TestHealthIsAPath(t *testing.T) {
	for path, ok := range map[string]bool{
		"": true, "/": true, "/health?deep=1": true, "health": false, "/a b": false, "/a\r\nX: y": false, "/#f": false, "/" + strings.Repeat("x", 300): false,
	} {
		if _, err := (Target{}).WithHealth(path); (err == nil) != ok {
			t.Errorf("%q: %v", path, err)
		}
	}
}
