package attacks

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/paddock-run/paddock/internal/egress"
	"github.com/paddock-run/paddock/policies"
)

// networked are the policies whose sandboxes have a proxy.
var networked = []string{"build", "networked-allowlist"}

// sinkPort is of a server that reads for ever.
const sinkPort = "7444"

// names are what the fake resolver knows; rebind.test leads to each of its addresses in turn.
var names = map[string][]string{
	"good.test": {internet}, "meta.test": {metadata}, "gateway.test": {gateway}, "loop.test": {loopback},
	"mapped.test": {"::ffff:127.0.0.1"}, "rebind.test": {internet, loopback},
}

// resolver answers from names, for one sandbox.
type resolver struct {
	mu   sync.Mutex
	left map[string][]string
}

func (r *resolver) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	list, ok := r.left[host]
	if !ok {
		list = names[host]
	}
	if len(list) == 0 {
		return nil, errors.New("no such host")
	}
	r.left[host] = list
	if len(list) > 1 {
		r.left[host] = list[1:]
	}
	return []netip.Addr{netip.MustParseAddr(list[0])}, nil
}

// serveProxy gives a sandbox of a networked policy its proxy, as the runner does, with small
// budgets. The dialer is the kernel's own, in the namespace of the test.
func (b *box) serveProxy(t *testing.T, e policies.Egress) {
	t.Helper()
	allow, err := egress.ParseEntries([]string{
		"good.test:" + port, "good.test:" + sinkPort, "meta.test:" + port, "gateway.test:" + port, "loop.test:" + port, "mapped.test:" + port, "rebind.test:" + port,
	})
	if err != nil {
		t.Fatal(err)
	}
	rules := egress.Rules{Allow: allow, Refused: e.Refused, Limits: egress.Limits{
		Requests: 100, PerSecond: 1000, Connections: 8, BytesUp: 1 << 20, BytesDown: 1 << 20, HeadBytes: int(e.Limits.HeadBytes),
		Idle: 30 * time.Second, Life: time.Minute,
	}}
	out := &egress.Host{Resolver: &resolver{left: map[string][]string{}}, Dialer: &net.Dialer{}}
	b.ledger = egress.NewLedger()
	p, err := out.Proxy(b.Listeners()[0], rules, b.ledger)
	if err != nil {
		t.Fatal(err)
	}
	b.proxy = p
}

// sink reads all that comes, from everybody.
func sink(t *testing.T) {
	t.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", ":"+sinkPort)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				_, _ = io.Copy(io.Discard, c)
				_ = c.Close()
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		wg.Wait()
	})
}

// ask prints what the proxy answers to CONNECT for each of a list.
const ask = `ask() { printf "CONNECT $1 HTTP/1.1\r\nHost: $1\r\n\r\n" | nc 127.0.0.1 3128 | sed -n 's/\r$//; 1s/^HTTP.1.1 //p; s/^reached/reached/p; s/^Paddock-Verdict: //p' | tr '\n' ' '; echo; }
`

var proxied = []attack{
	{
		id: "X-N07", does: "asks the proxy for what it must not have", policies: networked,
		run: ask + `for t in good.test rebind.test rebind.test meta.test gateway.test loop.test mapped.test evil.test ` + internet + ` ` + metadata + ` [::1] [::ffff:7f00:1] 127.1 0x7f000001 2130706433; do printf "$t "; ask "$t:` + port + `"; done
printf 'port '; ask good.test:22; printf 'host '; printf 'GET http://good.test:7443/ HTTP/1.1\r\nHost: evil.test\r\n\r\n' | nc 127.0.0.1 3128 | head -1
printf 'two '; printf 'POST http://good.test:7443/ HTTP/1.1\r\nHost: good.test:7443\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n' | nc 127.0.0.1 3128 | head -1`,
		want: "good.test 200 Connection established reached\nrebind.test 200 Connection established reached\nrebind.test 403 Forbidden address_refused \n" +
			"meta.test 403 Forbidden address_refused \ngateway.test 403 Forbidden address_refused \nloop.test 403 Forbidden address_refused \nmapped.test 403 Forbidden address_refused \n" +
			"evil.test 403 Forbidden host_refused \n" + internet + " 403 Forbidden host_refused \n" + metadata + " 403 Forbidden host_refused \n" +
			"[::1] 403 Forbidden host_refused \n[::ffff:7f00:1] 403 Forbidden host_refused \n127.1 400 Bad Request bad_request \n0x7f000001 400 Bad Request bad_request \n2130706433 400 Bad Request bad_request \n" +
			"port 403 Forbidden port_refused \nhost HTTP/1.1 400 Bad Request\r\ntwo HTTP/1.1 400 Bad Request",
		then: func(t *testing.T, b *box, _ call) {
			t.Helper()
			b.wantLedger(t, "good.test:7443 allowed 1", "rebind.test:7443 allowed 1", "rebind.test:7443 address_refused 1", "meta.test:7443 address_refused 1",
				"evil.test:7443 host_refused 1", internet+":7443 host_refused 1", "127.0.0.1:7443 host_refused 1", "good.test:22 port_refused 1", ":0 bad_request 5")
		},
	},
	{
		id: "X-N09", does: "floods the proxy, holds connections silent, sends without end", policies: networked,
		run: `for i in 1 2 3 4 5; do sleep 1000 | nc 127.0.0.1 3128 >/dev/null 2>&1 & done
(printf 'CONNECT good.test:7444 HTTP/1.1\r\nHost: good.test:7444\r\n\r\n'; cat /dev/zero) 2>/dev/null | nc 127.0.0.1 3128 | head -c 12; echo
i=0; while [ $i -lt 120 ]; do printf 'CONNECT evil.test:1 HTTP/1.1\r\nHost: evil.test:1\r\n\r\n' | nc 127.0.0.1 3128 | sed -n 1p; i=$((i+1)); done | sort | uniq -c | tr -d '\r' | sed 's/^ *[0-9]* /some /'`,
		want: "HTTP/1.1 200\nsome HTTP/1.1 403 Forbidden\nsome HTTP/1.1 429 Too Many Requests",
		then: func(t *testing.T, b *box, _ call) {
			t.Helper()
			b.wantLedger(t, "good.test:7444 allowed 1", "good.test:7444 budget_bytes 1", "evil.test:1 host_refused", "evil.test:1 budget_requests")
			all, _ := b.ledger.All()
			for _, s := range all {
				if s.Up > 2<<20 {
					t.Errorf("%d bytes got out, want about 1 MiB", s.Up)
				}
			}
			// While all that goes on, another sandbox's proxy answers at once.
			other := b.h.start(t, "x-n09-other", b.policy.Name(), small)
			defer other.close(t)
			if c := other.sh(t, ask+"ask good.test:"+port); c.out != "200 Connection established reached\n" {
				t.Errorf("another sandbox's proxy: %q %q", c.out, c.err)
			}
		},
	},
}

// wantLedger holds that lines "HOST:PORT VERDICT [COUNT]" are on the sandbox's ledger.
func (b *box) wantLedger(t *testing.T, want ...string) {
	t.Helper()
	all, _ := b.ledger.All()
	var have []string
	for _, s := range all {
		have = append(have, fmt.Sprintf("%s:%d %s", s.Host, s.Port, s.Verdict), fmt.Sprintf("%s:%d %s %d", s.Host, s.Port, s.Verdict, s.Count))
	}
	for _, w := range want {
		if !slices.Contains(have, w) {
			t.Errorf("the ledger lacks %q:\n%s", w, strings.Join(have, "\n"))
		}
	}
}
