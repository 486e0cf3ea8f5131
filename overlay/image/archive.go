package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"runtime"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	specs "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/paddock-run/paddock/overlay"
)

const (
	blobsDir       = "blobs/sha256/"
	dockerManifest = "manifest.json"
	digestPrefix   = "sha256:"
	// maxIndexDepth is how many indexes may lead to a manifest.
	maxIndexDepth = 3
)

// read finds the image of an archive or layout: an OCI layout where there is an index.json,
// which `docker save` also writes since version 25, else what it wrote before. want picks
// one image by its name where there are several.
func read(f files, want string) (overlay.Image, error) {
	index, err := f.open(specs.ImageIndexFile)
	if err == nil {
		_ = index.Close()
		return readLayout(f, want)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return overlay.Image{}, err
	}
	saved, err := f.open(dockerManifest)
	if err == nil {
		_ = saved.Close()
		return readDocker(f, want)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return overlay.Image{}, err
	}
	return overlay.Image{}, refuse("bad_archive", specs.ImageIndexFile, "missing, as is %s: neither an OCI image layout nor an archive of `docker save`", dockerManifest)
}

func readLayout(f files, want string) (overlay.Image, error) {
	text, err := readSmall(f, specs.ImageIndexFile)
	if err != nil {
		return overlay.Image{}, err
	}
	fetch := func(d specs.Descriptor) ([]byte, error) { return readBlob(f, d) }
	manifest, err := resolve(text, want, fetch)
	if err != nil {
		return overlay.Image{}, err
	}
	config, err := readBlob(f, manifest.Config)
	if err != nil {
		return overlay.Image{}, err
	}
	img := overlay.Image{Config: config, Origin: "oci"}
	for _, d := range manifest.Layers {
		if err := checkDigest(d.Digest); err != nil {
			return overlay.Image{}, err
		}
		img.Layers = append(img.Layers, overlay.Blob{
			Digest: d.Digest.String(), MediaType: d.MediaType, Size: d.Size, Open: opener(f, blobsDir+d.Digest.Encoded()),
		})
	}
	return img, nil
}

func opener(f files, name string) func(context.Context) (io.ReadCloser, error) {
	return func(context.Context) (io.ReadCloser, error) {
		r, err := f.open(name)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, refuse("bad_archive", name, "missing from the archive")
		}
		return r, err
	}
}

// readBlob reads a small blob and holds it against its digest.
func readBlob(f files, d specs.Descriptor) ([]byte, error) {
	if err := checkDigest(d.Digest); err != nil {
		return nil, err
	}
	name := blobsDir + d.Digest.Encoded()
	text, err := readSmall(f, name)
	if err != nil {
		return nil, err
	}
	return text, checkBytes(text, d.Digest, name)
}

func checkDigest(d digest.Digest) error {
	if d.Validate() != nil || d.Algorithm() != digest.SHA256 {
		return refuse("bad_archive", "", "digest %q is no sha256 digest", d)
	}
	return nil
}

func checkBytes(text []byte, d digest.Digest, name string) error {
	if h := sha256.Sum256(text); hex.EncodeToString(h[:]) != d.Encoded() {
		return refuse("bad_archive", name, "contents do not match the digest")
	}
	return nil
}

// document is any of an index and a manifest.
type document struct {
	SchemaVersion int                `json:"schemaVersion"`
	Manifests     []specs.Descriptor `json:"manifests"`
	Config        specs.Descriptor   `json:"config"`
	Layers        []specs.Descriptor `json:"layers"`
}

// resolve follows an index to the manifest of this host's platform; a manifest is its own.
func resolve(text []byte, want string, fetch func(specs.Descriptor) ([]byte, error)) (document, error) {
	for range maxIndexDepth {
		var doc document
		if err := json.Unmarshal(text, &doc); err != nil {
			return document{}, refuse("bad_archive", "manifest", "%v", err)
		}
		if doc.SchemaVersion == 1 {
			return document{}, refuse("bad_archive", "manifest", "has schema version 1, which has no config; save or push the image anew")
		}
		if doc.Config.Digest != "" {
			return doc, nil
		}
		d, err := choose(doc.Manifests, want)
		if err != nil {
			return document{}, err
		}
		if text, err = fetch(d); err != nil {
			return document{}, err
		}
		want = "" // below, it is a choice of platform only
	}
	return document{}, refuse("bad_archive", specs.ImageIndexFile, "no manifest after %d indexes", maxIndexDepth)
}

// choose picks the one image for this host. Attestations, signatures and other artifacts
// are no images.
func choose(list []specs.Descriptor, want string) (specs.Descriptor, error) {
	var fit []specs.Descriptor
	for _, d := range list {
		if isImage(d) && fitsHost(d.Platform) && (want == "" || named(d, want)) {
			fit = append(fit, d)
		}
	}
	// One image under several names is listed once for each.
	slices.SortStableFunc(fit, func(a, b specs.Descriptor) int { return strings.Compare(string(a.Digest), string(b.Digest)) })
	fit = slices.CompactFunc(fit, func(a, b specs.Descriptor) bool { return a.Digest == b.Digest })
	if base := slices.DeleteFunc(slices.Clone(fit), func(d specs.Descriptor) bool { return d.Platform != nil && d.Platform.Variant != "" }); len(base) == 1 {
		fit = base // and variants of it for newer processors
	}
	if len(fit) == 1 {
		return fit[0], nil
	}
	if want != "" {
		return specs.Descriptor{}, refuse("bad_archive", specs.ImageIndexFile, "%d images named %q for linux/%s; it has %s", len(fit), want, runtime.GOARCH, namesOf(list))
	}
	return specs.Descriptor{}, refuse("bad_archive", specs.ImageIndexFile, "%d images for linux/%s among %d; name one of %s", len(fit), runtime.GOARCH, len(list), namesOf(list))
}

func isImage(d specs.Descriptor) bool {
	if d.Annotations["vnd.docker.reference.type"] != "" || d.ArtifactType != "" {
		return false
	}
	return d.Platform == nil || d.Platform.OS != "unknown"
}

func fitsHost(p *specs.Platform) bool {
	return p == nil || (p.OS == "linux" && p.Architecture == runtime.GOARCH)
}

// Annotations that name an image in an index: OCI's, which often is the tag alone, and
// the whole name as containerd and Docker write it.
const (
	refName   = specs.AnnotationRefName
	imageName = "io.containerd.image.name"
)

func named(d specs.Descriptor, want string) bool {
	for _, name := range []string{d.Annotations[refName], d.Annotations[imageName]} {
		if name != "" && (name == want || overlay.FullName(name) == overlay.FullName(want)) {
			return true
		}
	}
	return false
}

func namesOf(list []specs.Descriptor) string {
	var out []string
	for _, d := range list {
		if !isImage(d) {
			continue
		}
		name := d.Annotations[imageName]
		if name == "" {
			name = d.Annotations[refName]
		}
		if name == "" {
			name = d.Digest.String()
		}
		if p := d.Platform; p != nil {
			name += fmt.Sprintf(" (%s/%s)", p.OS, p.Architecture)
		}
		out = append(out, name)
	}
	return listed(out)
}

func listed(names []string) string {
	const most = 10
	if len(names) == 0 {
		return "nothing"
	}
	if more := len(names) - most; more > 0 {
		names = append(names[:most:most], fmt.Sprintf("%d more", more))
	}
	return strings.Join(names, ", ")
}

// saved is an image of `docker save`'s own list.
type saved struct {
	Config   string
	RepoTags []string
	Layers   []string
}

func readDocker(f files, want string) (overlay.Image, error) {
	text, err := readSmall(f, dockerManifest)
	if err != nil {
		return overlay.Image{}, err
	}
	var all []saved
	if err := json.Unmarshal(text, &all); err != nil {
		return overlay.Image{}, refuse("bad_archive", dockerManifest, "%v", err)
	}
	one, err := chooseSaved(all, want)
	if err != nil {
		return overlay.Image{}, err
	}
	config, err := readSmall(f, one.Config)
	if err != nil {
		return overlay.Image{}, err
	}
	img := overlay.Image{Config: config, Origin: "docker-archive"}
	for _, name := range one.Layers {
		img.Layers = append(img.Layers, overlay.Blob{Open: opener(f, name)})
	}
	return img, nil
}

func chooseSaved(all []saved, want string) (saved, error) {
	var fit []saved
	var names []string
	for _, s := range all {
		names = append(names, s.RepoTags...)
		if want == "" || slices.ContainsFunc(s.RepoTags, func(tag string) bool { return overlay.FullName(tag) == overlay.FullName(want) }) {
			fit = append(fit, s)
		}
	}
	if len(fit) != 1 {
		return saved{}, refuse("bad_archive", dockerManifest, "%d images; name one of %s", len(fit), listed(names))
	}
	return fit[0], nil
}
