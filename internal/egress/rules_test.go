package egress

import (
	"net/netip"
	"strings"
	"testing"
)

func TestEntriesHaveOneForm(t *testing.T) {
	for text, want := range map[string]string{
		"PyPI.org":                "pypi.org:80,443",
		"pypi.org.":               "pypi.org:80,443",
		"*.pythonhosted.org:443":  "*.pythonhosted.org:443",
		"mirror:8080,80,8080":     "mirror:80,8080",
		"a.example:*":             "a.example:*",
		"203.0.113.7":             "203.0.113.7:80,443",
		"10.1.2.3/16:5432":        "10.1.0.0/16:5432",
		"[2001:db8::1]:443":       "[2001:db8::1]:443",
		"2001:db8::/32":           "[2001:db8::/32]:80,443",
		"[2001:DB8::/32]:*":       "[2001:db8::/32]:*",
		"::ffff:10.0.0.1":         "10.0.0.1:80,443",
		"_srv.xn--bcher-kva.test": "_srv.xn--bcher-kva.test:80,443",
	} {
		e, err := ParseEntry(text)
		if err != nil {
			t.Errorf("ParseEntry(%q): %v", text, err)
			continue
		}
		if e.String() != want {
			t.Errorf("ParseEntry(%q) = %q, want %q", text, e, want)
		}
	}
}

func TestEntriesThatAreRefused(t *testing.T) {
	for _, text := range []string{
		"", ":80", "*", "*.", "*.*.org", "a.*.org", "a..org", "-a.org", "a.org:", "a.org:0", "a.org:65536", "a.org:http", "a.org:+80", "a.org:080",
		"http://a.org", "a.org/x", "user@a.org", "127.1", "0x7f.0.0.1", "2130706433", "127.0.0.0.1", "10.0.0.0/33", "::ffff:10.0.0.0/104",
		"fe80::1%lo", "[::1", "[::1]80", "[::1]:", "bücher.example", "a b.org", "a.org\n", strings.Repeat("a", 64) + ".org",
		strings.Repeat("a.", 127) + "org", "a.org:" + strings.Repeat("1,", 16) + "1",
	} {
		if e, err := ParseEntry(text); err == nil {
			t.Errorf("ParseEntry(%.60q) = %q, want an error", text, e)
		}
	}
	if _, err := ParseEntries(make([]string, MaxEntries+1)); err == nil {
		t.Error("a list longer than MaxEntries is taken")
	}
}

func rulesOf(tb testing.TB, allow ...string) Rules {
	tb.Helper()
	all, err := ParseEntries(allow)
	if err != nil {
		tb.Fatal(err)
	}
	return Rules{Allow: all, Refused: testRanges, Limits: testLimits}
}

// testRanges are some of those of the policies, which hold the whole list against what is
// registered.
var testRanges = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("100.64.0.0/10"),
	netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("169.254.0.0/16"), netip.MustParsePrefix("172.16.0.0/12"),
	netip.MustParsePrefix("192.168.0.0/16"), netip.MustParsePrefix("224.0.0.0/3"), netip.MustParsePrefix("::/3"),
	netip.MustParsePrefix("2002::/16"), netip.MustParsePrefix("4000::/2"), netip.MustParsePrefix("8000::/1"),
}

func TestWildcardsCoverWhatIsBelow(t *testing.T) {
	r := rulesOf(t, "*.example.org", "exact.test:8443")
	for host, want := range map[string]Verdict{
		"a.example.org:443": Allowed, "a.b.example.org:80": Allowed, "example.org:443": HostRefused,
		"badexample.org:443": HostRefused, "a.example.org.evil.test:443": HostRefused, "a.example.org:22": PortRefused,
		"exact.test:8443": Allowed, "exact.test:443": PortRefused, "sub.exact.test:8443": HostRefused,
		"A.Example.ORG.:443": Allowed,
	} {
		got := Allowed
		to, no := parseAuthority(host, 0)
		if no == nil {
			no = r.permits(to)
		}
		if no != nil {
			got = no.verdict
		}
		if got != want {
			t.Errorf("%s: %s, want %s", host, got, want)
		}
	}
}

func FuzzEntry(f *testing.F) {
	for _, s := range []string{"pypi.org", "*.a.test:443", "10.0.0.0/8:*", "[2001:db8::1]:80,443", "::1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		e, err := ParseEntry(text)
		if err != nil {
			return
		}
		again, err := ParseEntry(e.String())
		if err != nil || again.String() != e.String() {
			t.Errorf("%q reads as %q, and that as %q, %v", text, e, again, err)
		}
	})
}
