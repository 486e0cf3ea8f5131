package egress

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/textproto"
	"net/url"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// request is the head of a request that can be understood in one way alone.
type request struct {
	method string
	// connect asks for a tunnel to target; otherwise url is where it goes.
	connect bool
	target  target
	url     *url.URL
	header  http.Header
	// length is that of the body, -1 where it is chunked.
	length int64
	http10 bool
	// awaits: the client sends its body only after a 100 Continue.
	awaits bool
}

// Bounds of a request's head.
const (
	maxHeaders   = 128
	maxTargetURL = 16 << 10
)

var errHeadTooLarge = refuse(BadRequest, "the request's line and headers are larger than is allowed")

// readHead reads a request's line and headers, the empty line included. Lines end with CR
// LF and hold neither of them alone, nor NUL: what other programs would cut elsewhere.
func readHead(br *bufio.Reader, max int) ([]byte, error) {
	var head []byte
	for {
		line, err := br.ReadSlice('\n')
		if len(head)+len(line) > max || errors.Is(err, bufio.ErrBufferFull) {
			return nil, errHeadTooLarge
		}
		if err != nil {
			if len(head)+len(line) > 0 && errors.Is(err, io.EOF) {
				return nil, refuse(BadRequest, "the request breaks off")
			}
			return nil, err
		}
		if !bytes.HasSuffix(line, []byte("\r\n")) || bytes.ContainsAny(line[:len(line)-2], "\r\x00") {
			return nil, refuse(BadRequest, "a line does not end with CR LF, or holds a CR or NUL")
		}
		head = append(head, line...)
		if len(line) == 2 {
			return head, nil
		}
	}
}

// parseHead reads the head of a request to a proxy. It is strict where programs differ:
// whoever forwards a request that two programs read differently lets one hide in another.
func parseHead(head []byte) (*request, *refusal) {
	r, text, no := parseLines(head)
	if no != nil {
		return nil, no
	}
	if no := r.setTarget(text); no != nil {
		return nil, no
	}
	return r, nil
}

// parseOrigin reads the head of a request to a server, which names no other host.
func parseOrigin(head []byte) (*request, *refusal) {
	r, text, no := parseLines(head)
	if no != nil {
		return nil, no
	}
	if no := checkText(text); no != nil {
		return nil, no
	}
	u, err := url.ParseRequestURI(text)
	if err != nil || !strings.HasPrefix(text, "/") || strings.HasPrefix(text, "//") {
		return nil, refuse(BadRequest, "the target %.100q is not /PATH", text)
	}
	if len(r.header["Host"]) > 1 {
		return nil, refuse(BadRequest, "more than one Host header")
	}
	r.url = u
	return r, nil
}

// parseLines reads all of a head but what its target means.
func parseLines(head []byte) (*request, string, *refusal) {
	lines := strings.Split(string(head), "\r\n")
	if len(lines) < 3 || lines[len(lines)-1] != "" || lines[len(lines)-2] != "" {
		return nil, "", refuse(BadRequest, "the request is not whole")
	}
	line, fields := lines[0], lines[1:len(lines)-2]
	r := &request{}
	words := strings.Split(line, " ")
	if len(words) != 3 {
		return nil, "", refuse(BadRequest, "the request line %.100q is not METHOD TARGET VERSION", line)
	}
	r.method = words[0]
	if !httpguts.ValidHeaderFieldName(r.method) || len(r.method) > maxMethodText {
		return nil, "", refuse(BadRequest, "the method %.40q is no word", r.method)
	}
	switch words[2] {
	case "HTTP/1.1":
	case "HTTP/1.0":
		r.http10 = true
	default:
		return nil, "", refuse(BadRequest, "the version %.20q is not HTTP/1.1", words[2])
	}
	if no := r.setFields(fields); no != nil {
		return nil, "", no
	}
	if no := r.setLength(); no != nil {
		return nil, "", no
	}
	return r, words[1], nil
}

// setFields reads the header fields.
func (r *request) setFields(fields []string) *refusal {
	if len(fields) > maxHeaders {
		return refuse(BadRequest, "%d headers, at most %d are allowed", len(fields), maxHeaders)
	}
	r.header = http.Header{}
	for _, f := range fields {
		name, value, ok := strings.Cut(f, ":")
		// A name with a blank after it, or a folded line, is no name.
		if !ok || !httpguts.ValidHeaderFieldName(name) {
			return refuse(BadRequest, "the header %.60q is not NAME: VALUE", f)
		}
		value = strings.Trim(value, " \t")
		if !httpguts.ValidHeaderFieldValue(value) {
			return refuse(BadRequest, "the header %.60q holds a control character", name)
		}
		key := textproto.CanonicalMIMEHeaderKey(name)
		r.header[key] = append(r.header[key], value)
	}
	return nil
}

// setLength finds how long the body is; there must be one way alone to tell.
func (r *request) setLength() *refusal {
	lengths, codings := r.header["Content-Length"], r.header["Transfer-Encoding"]
	switch {
	case len(lengths) > 0 && len(codings) > 0:
		return refuse(BadRequest, "both Content-Length and Transfer-Encoding")
	case len(lengths) > 1 || len(codings) > 1:
		return refuse(BadRequest, "Content-Length or Transfer-Encoding more than once")
	case len(codings) == 1:
		if r.http10 || !strings.EqualFold(codings[0], "chunked") {
			return refuse(BadRequest, "the Transfer-Encoding %.40q is not chunked", codings[0])
		}
		r.length = -1
	case len(lengths) == 1:
		n, err := strconv.ParseUint(lengths[0], 10, 62)
		if err != nil || lengths[0][0] == '+' {
			return refuse(BadRequest, "the Content-Length %.40q is no number", lengths[0])
		}
		r.length = int64(n)
	}
	switch expect := r.header["Expect"]; {
	case len(expect) == 0:
	case len(expect) == 1 && strings.EqualFold(expect[0], "100-continue"):
		r.awaits = r.length != 0 && !r.http10
	default:
		return refuse(BadRequest, "the expectation %.40q is not 100-continue", strings.Join(expect, ", "))
	}
	return nil
}

// setTarget finds where the request goes. The line and the Host header must agree.
func (r *request) setTarget(text string) *refusal {
	no := checkText(text)
	if no != nil {
		return no
	}
	if strings.EqualFold(r.method, http.MethodTrace) || strings.EqualFold(r.method, "TRACK") {
		return refuse(BadRequest, "%s shows the headers of a request, those that the proxy adds among them", r.method)
	}
	if r.method == http.MethodConnect {
		r.connect = true
		if r.length != 0 {
			return refuse(BadRequest, "CONNECT with a body")
		}
		r.target, no = parseAuthority(text, 0)
	} else {
		r.target, no = r.setURL(text)
	}
	if no != nil {
		return no
	}
	return r.checkHost()
}

// checkText says what is wrong with a target, whatever it means.
func checkText(text string) *refusal {
	if len(text) > maxTargetURL {
		return refuse(BadRequest, "the target has %d bytes, at most %d are allowed", len(text), maxTargetURL)
	}
	if i := strings.IndexFunc(text, func(c rune) bool { return c <= ' ' || c >= 0x7f }); i >= 0 {
		return refuse(BadRequest, "the target holds a character that must be escaped")
	}
	return nil
}

// setURL reads the absolute form, the one that is sent to a proxy.
func (r *request) setURL(text string) (target, *refusal) {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return target{}, refuse(BadRequest, "the target %.100q is no URL", text)
	case strings.EqualFold(u.Scheme, "https"):
		return target{}, refuse(BadRequest, "https goes through the proxy by CONNECT")
	case !strings.EqualFold(u.Scheme, "http") || u.Opaque != "" || u.Host == "":
		return target{}, refuse(BadRequest, "the target %.100q is not http://HOST/PATH: this is a proxy", text)
	case u.User != nil:
		return target{}, refuse(BadRequest, "the target has a user: that hides a host")
	case u.Fragment != "" || u.RawFragment != "" || strings.Contains(text, "#"):
		return target{}, refuse(BadRequest, "the target has a fragment")
	case strings.Contains(text, `\`):
		return target{}, refuse(BadRequest, "the target has a backslash")
	}
	r.url = u
	return parseAuthority(u.Host, 80)
}

// checkHost holds the Host header against the target.
func (r *request) checkHost() *refusal {
	hosts := r.header["Host"]
	switch {
	case len(hosts) > 1:
		return refuse(BadRequest, "more than one Host header")
	case len(hosts) == 0 && !r.http10:
		return refuse(BadRequest, "no Host header")
	case len(hosts) == 0:
		return nil
	}
	named, no := parseAuthority(hosts[0], r.target.port)
	if no != nil {
		return no
	}
	if named != r.target {
		return refuse(BadRequest, "the Host header names %.100s, the target %.100s", hosts[0], r.target.host())
	}
	return nil
}

// parseAuthority reads HOST:PORT; without a port it is unset, where that is not 0.
func parseAuthority(text string, unset uint16) (target, *refusal) {
	host, port := text, ""
	if i := strings.LastIndexByte(text, ':'); i >= 0 && !strings.HasSuffix(text, "]") {
		host, port = text[:i], text[i+1:]
		if port == "" {
			return target{}, refuse(BadRequest, "%.100q has no port", text)
		}
	}
	t, no := parseHost(host)
	if no != nil {
		return target{}, no
	}
	t.port = unset
	if port != "" {
		p, err := parsePort(port)
		if err != nil {
			return target{}, refuse(BadRequest, "%v", err)
		}
		t.port = p
	}
	if t.port == 0 {
		return target{}, refuse(BadRequest, "%.100q has no port", text)
	}
	return t, nil
}

// hopByHop are the headers that are between two neighbours alone.
var hopByHop = []string{
	"Connection", "Expect", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Proxy-Connection", "Te", "Trailer",
	"Transfer-Encoding", "Upgrade", "Content-Length", "Host",
}

// endToEnd are the headers that travel on.
func endToEnd(h http.Header) http.Header {
	out := h.Clone()
	for _, v := range h["Connection"] {
		for name := range strings.SplitSeq(v, ",") {
			out.Del(textproto.TrimString(name))
		}
	}
	for _, name := range hopByHop {
		out.Del(name)
	}
	return out
}
