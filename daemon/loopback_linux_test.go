package daemon

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
)

func TestWhoseASocketIs(t *testing.T) {
	t.Parallel()
	const head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
	table := head +
		"   0: 0100007F:1F90 0100007F:C000 01 00000000:00000000 00:00000000 00000000     0        0 111 1 0 20 4 30 10 -1\n" +
		"   1: 0100007F:C000 0100007F:1F90 01 00000000:00000000 00:00000000 00000000  1000        0 222 1 0 20 4 30 10 -1\n" +
		"   2: 0100007F:C001 0100007F:1F90 05 00000000:00000000 00:00000000 00000000     0        0 0 1 0 20 4 30 10 -1\n" +
		"   3: 0000000000000000FFFF00000100007F:C002 0000000000000000FFFF00000100007F:1F90 01 0:0 0:0 0  1001 0 333 1\n" +
		"   4: 00000000000000000000000001000000:C003 00000000000000000000000001000000:1F90 01 0:0 0:0 0  1002 0 444 1\n" +
		"   5: 0100007F:C004 0100007F:1F90 01 0:0 0:0 0  x 0 555 1\n   6: torn\n"
	for local, want := range map[string]uint32{"127.0.0.1:49152": 1000, "127.0.0.1:49154": 1001} {
		if uid, err := ownerOf(strings.NewReader(table), netip.MustParseAddrPort(local), netip.MustParseAddrPort("127.0.0.1:8080")); err != nil || uid != want {
			t.Errorf("%s is of %d, %v; want %d", local, uid, err, want)
		}
	}
	if uid, err := ownerOf(strings.NewReader(table), netip.MustParseAddrPort("[::1]:49155"), netip.MustParseAddrPort("[::1]:8080")); err != nil || uid != 1002 {
		t.Errorf("[::1] is of %d, %v", uid, err)
	}
	for _, local := range []string{"127.0.0.1:49153", "127.0.0.1:50000"} { // nobody's any more, and not there
		if uid, err := ownerOf(strings.NewReader(table), netip.MustParseAddrPort(local), netip.MustParseAddrPort("127.0.0.1:8080")); !errors.Is(err, errNoUser) {
			t.Errorf("%s is of %d, %v; want nobody", local, uid, err)
		}
	}
	if _, err := ownerOf(strings.NewReader(table), netip.MustParseAddrPort("127.0.0.1:49156"), netip.MustParseAddrPort("127.0.0.1:8080")); err == nil {
		t.Error("a user that is no number was taken")
	}
}
