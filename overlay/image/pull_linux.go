package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	specs "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/paddock-run/paddock/overlay"
)

const (
	// pullTries is how often in a row a download may break off without a byte gained.
	pullTries = 4
	// pullPause is the first pause before it is asked for again; each next one is doubled.
	pullPause = 200 * time.Millisecond
)

// pulling is one pull. What of a layer has arrived lies in the store's downloads, whole or
// in part, until the world is sealed: a pull that broke off goes on there.
type pulling struct {
	worlds   Worlds
	registry *registry
	ref      string
	progress overlay.Progress

	mu    sync.Mutex
	got   map[string]int64 // bytes by digest
	total int64
}

func (w Worlds) pull(ctx context.Context, r overlay.Remote, name string, progress overlay.Progress) (overlay.World, error) {
	reg, err := dial(ctx, r)
	if err != nil {
		return overlay.World{}, err
	}
	p := &pulling{worlds: w, registry: reg, ref: r.Ref, progress: progress, got: map[string]int64{}}
	doc, config, err := reg.image(ctx)
	if err != nil {
		return overlay.World{}, err
	}
	img := overlay.Image{Config: config, Origin: "registry:" + reg.ref.Name()}
	for _, d := range doc.Layers {
		if err := checkDigest(d.Digest); err != nil {
			return overlay.World{}, err
		}
		p.total += d.Size
		img.Layers = append(img.Layers, overlay.Blob{
			Digest: d.Digest.String(), MediaType: d.MediaType, Size: d.Size,
			Open: func(ctx context.Context) (io.ReadCloser, error) { return p.open(ctx, d) },
		})
	}
	world, err := w.Add(ctx, img, name, progress)
	if _, refused := errors.AsType[*overlay.RecipeError](err); err != nil && !refused {
		return overlay.World{}, err
	}
	for digest := range p.got { // sealed, or of no use to another pull either
		if rerr := os.Remove(p.place(digest)); rerr != nil && !errors.Is(rerr, os.ErrNotExist) {
			err = errors.Join(err, fmt.Errorf("pull %s: %w", r.Ref, rerr))
		}
	}
	return world, err
}

func (p *pulling) place(digest string) string {
	return filepath.Join(p.worlds.Downloads(), strings.TrimPrefix(digest, digestPrefix))
}

// open gives a layer's blob, which it brings first as far as it is not there.
func (p *pulling) open(ctx context.Context, d specs.Descriptor) (io.ReadCloser, error) {
	if d.Size <= 0 {
		return nil, refuse("bad_archive", "manifest", "layer %s of %d bytes", d.Digest, d.Size)
	}
	land, err := p.worlds.Once(ctx, "blob "+d.Digest.String()) // another pull may be at it
	if err != nil {
		return nil, err
	}
	defer land()
	f, err := os.OpenFile(p.place(d.Digest.String()), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("pull: %w", err)
	}
	if err := p.fetch(ctx, d, f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// fetch brings what is missing of a blob and holds the whole against its digest. A file
// with other bytes, as a crash may leave it, is brought anew, once.
func (p *pulling) fetch(ctx context.Context, d specs.Descriptor, f *os.File) error {
	for fresh := false; ; fresh = true {
		had, err := f.Seek(0, io.SeekEnd)
		if err != nil {
			return err
		}
		if err := p.complete(ctx, d, f, had); err != nil {
			return err
		}
		got, err := digestOf(f)
		if err != nil || got == d.Digest.String() {
			return err
		}
		if err := f.Truncate(0); err != nil {
			return err
		}
		if had == 0 || fresh {
			return refuse("bad_archive", "layer "+d.Digest.String(), "the registry's bytes have the digest %s", got)
		}
	}
}

func digestOf(f *os.File) (string, error) {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return "", err
	}
	h := sha256.New()
	_, err := io.Copy(h, f)
	return digestPrefix + hex.EncodeToString(h.Sum(nil)), err
}

// complete asks for the rest of a blob until it is there. Each try goes on where the last
// one broke off; several without a byte are given up, and the file stays for the next pull.
func (p *pulling) complete(ctx context.Context, d specs.Descriptor, f *os.File, have int64) error {
	pause, tries := pullPause, 0
	for have < d.Size {
		p.tell(d, have)
		now, err := p.more(ctx, d, f, have)
		if err == nil && now == have {
			err = &overlay.RegistryError{Kind: overlay.RegistryUnavailable, Ref: p.ref, Detail: fmt.Sprintf("the registry ends layer %s after %d of %d bytes", d.Digest, now, d.Size)}
		}
		if now > have {
			pause, tries = pullPause, 0
		}
		have = now
		if err == nil {
			tries++
			continue
		}
		e, ok := errors.AsType[*overlay.RegistryError](err)
		if !ok || e.Kind != overlay.RegistryUnavailable {
			return err
		}
		if tries++; tries >= pullTries {
			e.Kept = have
			return e
		}
		if err := wait(ctx, pause); err != nil {
			return err
		}
		pause *= 2
	}
	if have > d.Size {
		return errors.Join(f.Truncate(0), refuse("bad_archive", "layer "+d.Digest.String(), "the registry has %d bytes, the manifest says %d", have, d.Size))
	}
	p.tell(d, have)
	return nil
}

func wait(ctx context.Context, pause time.Duration) error {
	t := time.NewTimer(pause)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// more appends what one answer brings and says how much there is then.
func (p *pulling) more(ctx context.Context, d specs.Descriptor, f *os.File, have int64) (int64, error) {
	resp, err := p.registry.get(ctx, "/blobs/"+d.Digest.String(), have)
	if err != nil {
		return have, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusPartialContent || !strings.HasPrefix(resp.Header.Get("Content-Range"), fmt.Sprintf("bytes %d-", have)) {
		have = 0 // it cannot go on, so this is the whole, or nothing (416)
		if err := f.Truncate(0); err != nil {
			return 0, err
		}
		if resp.StatusCode != http.StatusOK {
			return 0, &overlay.RegistryError{Kind: overlay.RegistryUnavailable, Ref: p.ref, Detail: "the registry answers a range with " + resp.Status}
		}
	}
	if _, err := f.Seek(have, io.SeekStart); err != nil {
		return have, err
	}
	in := &source{ctx: ctx, r: io.LimitReader(resp.Body, d.Size-have+1), progress: func(_ string, n, _ int64) { p.tell(d, have+n) }}
	n, err := io.Copy(f, in)
	if err != nil && (in.err != nil || ctx.Err() != nil) {
		return have + n, failed(ctx, p.ref, err)
	}
	return have + n, err
}

// tell says how much of all layers is there.
func (p *pulling) tell(d specs.Descriptor, n int64) {
	p.mu.Lock()
	p.got[d.Digest.String()] = n
	var sum int64
	for _, n := range p.got {
		sum += n
	}
	p.mu.Unlock()
	p.progress("pull", sum, p.total)
}
