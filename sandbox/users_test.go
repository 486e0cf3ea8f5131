package sandbox

import (
	"errors"
	"reflect"
	"strings"
	"testing"
)

const (
	testPasswd = "root:x:0:0:root:/root:/bin/bash\n" +
		"bad\n" +
		":x:7:7::/:\n" +
		"worse:x:minus:1::/:/bin/sh\n" +
		"neg:x:-1:0::/:/bin/sh\n" +
		"app:x:1000:1001:App,,,:/home/app:/bin/sh\n" +
		"app:x:0:0:second:/evil:/bin/evil\n" +
		"1000:x:0:0:a name of digits:/evil:\n" +
		"huge:x:4294967296:0::/:\n" +
		"far:x:100000:0::/:\n" +
		"twin:x:1000:5::/twin:\n" +
		"short:x:8:9:no shell:/s\n" +
		"+::::::\n"
	testGroup = "root:x:0:\n" +
		"app:x:1001:\n" +
		"docker:x:1234:bob,app\n" +
		"docker:x:99:app\n" +
		"again:x:1234:app\n" +
		"far:x:70000:app\n" +
		"own:x:1001:app\n" +
		"part:x:55:application,xapp\n" +
		"bad:x:x:app\n"
)

func TestLookupUser(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		ref         string
		user        User
		home, shell string
	}{
		{"root", User{}, "/root", "/bin/bash"},
		{"0", User{}, "/root", "/bin/bash"},
		{"00", User{}, "/root", "/bin/bash"},
		{"app", User{UID: 1000, GID: 1001, Groups: []uint32{99, 1234}}, "/home/app", "/bin/sh"},
		{"1000", User{UID: 1000, GID: 1001, Groups: []uint32{99, 1234}}, "/home/app", "/bin/sh"},
		{"app:docker", User{UID: 1000, GID: 1234}, "/home/app", "/bin/sh"},
		{"app:77", User{UID: 1000, GID: 77}, "/home/app", "/bin/sh"},
		{"4242", User{UID: 4242}, "", ""},
		{"4242:4243", User{UID: 4242, GID: 4243}, "", ""},
		{"4242:docker", User{UID: 4242, GID: 1234}, "", ""},
		{"short", User{UID: 8, GID: 9}, "/s", ""},
		{"65535", User{UID: 65535}, "", ""},
	} {
		user, home, shell, err := LookupUser([]byte(testPasswd), []byte(testGroup), c.ref)
		if err != nil || !reflect.DeepEqual(user, c.user) || home != c.home || shell != c.shell {
			t.Errorf("LookupUser(%q) = %+v, %q, %q, %v, want %+v, %q, %q", c.ref, user, home, shell, err, c.user, c.home, c.shell)
		}
	}
}

func TestLookupUserRefusals(t *testing.T) {
	t.Parallel()
	for ref, kind := range map[string]string{
		"bob": "user_not_found", "worse": "user_not_found", "neg": "user_not_found", "+": "user_not_found", "-1": "user_not_found",
		"+1": "user_not_found", "App": "user_not_found",
		"app:nogroup": "group_not_found", "0:bad": "group_not_found",
		"": "invalid_user", ":": "invalid_user", "app:": "invalid_user", ":app": "invalid_user", "a:b:c": "invalid_user",
		"a\x00": "invalid_user", "a\nb": "invalid_user", strings.Repeat("a", 300): "invalid_user",
		"far": "invalid_user", "huge": "invalid_user", "65536": "invalid_user", "4294967296": "invalid_user",
		"99999999999999999999999": "invalid_user", "0:65536": "invalid_user", "app:far": "invalid_user",
	} {
		user, home, shell, err := LookupUser([]byte(testPasswd), []byte(testGroup), ref)
		e, ok := errors.AsType[*UserError](err)
		if !ok || e.Kind != kind || !reflect.DeepEqual(user, User{}) || home != "" || shell != "" {
			t.Errorf("LookupUser(%q) = %+v, %q, %q, %v, want kind %s", ref, user, home, shell, err, kind)
		}
	}
}

func TestLookupUserInHostileFiles(t *testing.T) {
	t.Parallel()
	long := "x" + strings.Repeat(":", 1<<20) + "\n" + strings.Repeat("y", 1<<20) + "\nlate:x:5:6::/late:/bin/sh\n"
	if user, home, _, err := LookupUser([]byte(long), nil, "late"); err != nil || user.UID != 5 || home != "/late" {
		t.Errorf("behind long lines: %+v, %q, %v", user, home, err)
	}
	beyond := strings.Repeat("#\n", maxUserFile) + "late:x:5:6::/late:/bin/sh\n"
	if _, _, _, err := LookupUser([]byte(beyond), nil, "late"); err == nil {
		t.Error("an entry beyond the bound on the file is found")
	}
	if _, _, _, err := LookupUser(nil, nil, "root"); err == nil {
		t.Error("root is found in no file")
	}
	var many strings.Builder
	for i := range 3000 {
		many.WriteString("g:x:" + string(rune('0'+i%10)) + strings.Repeat("1", i%4) + ":app\n")
	}
	if user, _, _, err := LookupUser([]byte(testPasswd), []byte(many.String()), "app"); err != nil || len(user.Groups) > maxGroups {
		t.Errorf("many groups: %d, %v", len(user.Groups), err)
	}
}

func FuzzLookupUser(f *testing.F) {
	f.Add([]byte(testPasswd), []byte(testGroup), "app:docker")
	f.Add([]byte("a:x:1:1"), []byte("a:::"), "0")
	f.Fuzz(func(t *testing.T, passwd, group []byte, ref string) {
		user, home, shell, err := LookupUser(passwd, group, ref)
		if err != nil {
			if _, ok := errors.AsType[*UserError](err); !ok {
				t.Fatalf("%v is no *UserError", err)
			}
			return
		}
		if user.UID >= IDRangeSize || user.GID >= IDRangeSize || len(user.Groups) > maxGroups {
			t.Fatalf("user %+v is out of bounds", user)
		}
		if strings.ContainsAny(home+shell, "\n\x00") {
			t.Fatalf("home %q or shell %q holds a line end or NUL", home, shell)
		}
		if uid, ok := number(strings.SplitN(ref, ":", 2)[0]); ok && uid != user.UID {
			t.Fatalf("%q gives uid %d", ref, user.UID)
		}
	})
}
