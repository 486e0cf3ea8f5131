package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/opencontainers/go-digest"
	specs "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/paddock-run/paddock/overlay"
)

// manifestTypes are the manifests and indexes that a registry may answer with.
var manifestTypes = strings.Join([]string{
	specs.MediaTypeImageManifest, specs.MediaTypeImageIndex,
	"application/vnd.docker.distribution.manifest.v2+json", "application/vnd.docker.distribution.manifest.list.v2+json",
}, ", ")

// Credentials finds what the usual Docker config of this process's user has for the
// registry of a reference; without any, the transfer is anonymous.
func Credentials(ref string) (username, password, token string, err error) {
	parsed, err := name.ParseReference(ref)
	if err != nil {
		return "", "", "", refuse("bad_recipe", ref, "%v", err)
	}
	a, err := authn.DefaultKeychain.Resolve(parsed.Context())
	if err != nil {
		return "", "", "", fmt.Errorf("read the Docker config: %w", err)
	}
	c, err := a.Authorization()
	if err != nil {
		return "", "", "", fmt.Errorf("ask for credentials of %s: %w", parsed.Context().RegistryStr(), err)
	}
	if c.IdentityToken != "" { // by convention, the password of nobody in particular
		return "<token>", c.IdentityToken, "", nil
	}
	return c.Username, c.Password, c.RegistryToken, nil
}

// registry asks one registry about one image.
type registry struct {
	ref  name.Reference
	auth authn.Authenticator
	http *http.Client
	base string // URL of the repository
}

func parse(r overlay.Remote) (name.Reference, authn.Authenticator, error) {
	var opts []name.Option
	if r.PlainHTTP {
		opts = append(opts, name.Insecure)
	}
	ref, err := name.ParseReference(r.Ref, opts...)
	if err != nil {
		return nil, nil, refuse("bad_recipe", r.Ref, "%v", err)
	}
	switch {
	case r.Username == "<token>":
		return ref, authn.FromConfig(authn.AuthConfig{IdentityToken: r.Password}), nil
	case r.Username != "" || r.Password != "" || r.Token != "":
		return ref, authn.FromConfig(authn.AuthConfig{Username: r.Username, Password: r.Password, RegistryToken: r.Token}), nil
	case r.Config:
		auth, err := authn.DefaultKeychain.Resolve(ref.Context())
		if err != nil {
			return nil, nil, fmt.Errorf("read the Docker config: %w", err)
		}
		return ref, auth, nil
	}
	return ref, authn.Anonymous, nil
}

// dial agrees with the registry on how to authenticate.
func dial(ctx context.Context, r overlay.Remote) (*registry, error) {
	ref, auth, err := parse(r)
	if err != nil {
		return nil, err
	}
	repo := ref.Context()
	rt, err := transport.NewWithContext(ctx, repo.Registry, auth, remote.DefaultTransport, []string{repo.Scope(transport.PullScope)})
	if err != nil {
		return nil, failed(ctx, r.Ref, err)
	}
	return &registry{
		ref: ref, auth: auth, http: &http.Client{Transport: rt},
		base: repo.Scheme() + "://" + repo.RegistryStr() + "/v2/" + repo.RepositoryStr(),
	}, nil
}

// get asks for a part of the repository, from an offset on. The answer is 200 or 206.
func (r *registry) get(ctx context.Context, path string, from int64) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.base+path, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", manifestTypes)
	if from > 0 {
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", from))
	}
	resp, err := r.http.Do(req)
	if err != nil {
		return nil, failed(ctx, r.ref.String(), err)
	}
	if err := transport.CheckError(resp, http.StatusOK, http.StatusPartialContent, http.StatusRequestedRangeNotSatisfiable); err != nil {
		return nil, errors.Join(failed(ctx, r.ref.String(), err), resp.Body.Close())
	}
	return resp, nil
}

// small gets a manifest or config. A digest that was asked for is held against it.
func (r *registry) small(ctx context.Context, path string, want digest.Digest) ([]byte, error) {
	resp, err := r.get(ctx, path, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxMeta+1))
	if err != nil {
		return nil, failed(ctx, r.ref.String(), err)
	}
	if len(text) > maxMeta {
		return nil, refuse("world_too_large", path, "more than %d bytes", maxMeta)
	}
	if want != "" {
		return text, checkBytes(text, want, path)
	}
	return text, nil
}

// image reads what the registry says of the image for this host.
func (r *registry) image(ctx context.Context) (document, []byte, error) {
	var want digest.Digest
	if d, ok := r.ref.(name.Digest); ok {
		want = digest.Digest(d.DigestStr())
		if err := checkDigest(want); err != nil {
			return document{}, nil, err
		}
	}
	text, err := r.small(ctx, "/manifests/"+r.ref.Identifier(), want)
	if err != nil {
		return document{}, nil, err
	}
	doc, err := resolve(text, "", func(d specs.Descriptor) ([]byte, error) {
		if err := checkDigest(d.Digest); err != nil {
			return nil, err
		}
		return r.small(ctx, "/manifests/"+d.Digest.String(), d.Digest)
	})
	if err != nil {
		return document{}, nil, err
	}
	if err := checkDigest(doc.Config.Digest); err != nil {
		return document{}, nil, err
	}
	config, err := r.small(ctx, "/blobs/"+doc.Config.Digest.String(), doc.Config.Digest)
	return doc, config, err
}

// failed says of an error of a transfer whose fault it is.
func failed(ctx context.Context, ref string, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	out := &overlay.RegistryError{Kind: overlay.RegistryUnavailable, Ref: ref, Detail: err.Error()}
	if e, ok := errors.AsType[*transport.Error](err); ok {
		switch e.StatusCode {
		case http.StatusUnauthorized, http.StatusForbidden:
			out.Kind = overlay.RegistryDenied
		case http.StatusNotFound:
			out.Kind = overlay.RegistryNotFound
		}
	}
	return out
}
