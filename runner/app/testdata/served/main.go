// Command served is the app of the tests: a game that keeps a score for each session, in
// memory.
package main

import (
	"bufio"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"
)

func main() {
	var mu sync.Mutex
	scores := map[string]int{}
	id := fmt.Sprintf("%d", time.Now().UnixNano())
	mux := http.NewServeMux()
	mux.HandleFunc("/add", func(w http.ResponseWriter, r *http.Request) {
		n, _ := strconv.Atoi(r.FormValue("n"))
		mu.Lock()
		defer mu.Unlock()
		scores[r.Header.Get("Paddock-Session")] += n
		fmt.Fprintf(w, "%d", scores[r.Header.Get("Paddock-Session")])
	})
	mux.HandleFunc("/who", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintf(w, "%s %s", os.Getenv("NAME"), id) })
	mux.HandleFunc("/slow", func(w http.ResponseWriter, r *http.Request) {
		d, _ := time.ParseDuration(r.FormValue("for"))
		select {
		case <-time.After(d):
		case <-r.Context().Done():
		}
		fmt.Fprint(w, "done")
	})
	mux.HandleFunc("/events", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range 3 {
			fmt.Fprintf(w, "data: %d\n\n", i)
			_ = http.NewResponseController(w).Flush()
			<-time.After(50 * time.Millisecond)
		}
	})
	mux.HandleFunc("/echo", func(w http.ResponseWriter, r *http.Request) { // any upgrade: bytes come back
		c, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer func() { _ = c.Close() }()
		_, _ = fmt.Fprintf(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", r.Header.Get("Upgrade"))
		_, _ = io.Copy(c, bufio.NewReader(rw))
	})
	mux.HandleFunc("/request", func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprintf(w, "%s %s\n", r.Method, r.URL.RequestURI())
		_ = r.Header.Write(w)
	})
	mux.HandleFunc("/lie", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Paddock-Error", "session_lost")
		w.Header().Set("Location", "/who")
		w.WriteHeader(http.StatusFound)
	})
	mux.HandleFunc("/status", func(w http.ResponseWriter, r *http.Request) { // one that the server would not write
		conn, _, err := http.NewResponseController(w).Hijack()
		if err == nil {
			fmt.Fprintf(conn, "HTTP/1.1 %s X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", r.URL.RawQuery)
			_ = conn.Close()
		}
	})
	mux.HandleFunc("/parts", func(w http.ResponseWriter, r *http.Request) { // head first, then the body that came
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		_ = http.NewResponseController(w).Flush()
		<-time.After(time.Millisecond)
		_, _ = w.Write(body)
	})
	mux.HandleFunc("/exit", func(http.ResponseWriter, *http.Request) { os.Exit(3) })
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		if _, err := os.Stat("/tmp/sick"); err == nil {
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	mux.HandleFunc("/sick", func(http.ResponseWriter, *http.Request) { _ = os.WriteFile("/tmp/sick", nil, 0o600) })
	fmt.Println("serving on", os.Getenv("PORT"))
	log.Fatal(http.ListenAndServe("127.0.0.1:"+os.Getenv("PORT"), mux)) //nolint:gosec // of the tests alone
}
