package overlay

import "strings"

// FullName is the whole name of an image as container engines understand its short forms:
// python is docker.io/library/python:latest. What is no such name is answered as it is.
func FullName(name string) string {
	host, rest, found := strings.Cut(name, "/")
	switch {
	case !found:
		rest, host = name, "docker.io"
	case !strings.ContainsAny(host, ".:") && host != "localhost":
		rest, host = name, "docker.io"
	case host == "index.docker.io":
		host = "docker.io"
	}
	if host == "docker.io" && !strings.Contains(rest, "/") {
		rest = "library/" + rest
	}
	if !strings.Contains(rest, "@") && !strings.Contains(rest[strings.LastIndexByte(rest, '/')+1:], ":") {
		rest += ":latest"
	}
	return host + "/" + rest
}
