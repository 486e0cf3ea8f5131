package overlay

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"time"

	docker "github.com/moby/docker-image-spec/specs-go/v1"
	specs "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/opencontainers/go-digest"
	specsgo "github.com/opencontainers/image-spec/specs-go"
)

// Labels of an image config that carry what OCI has no field for, as JSON.
const (
	labelTools = "run.paddock.tools"
	labelSetup = "run.paddock.setup"
)

const blobsDir = "blobs/sha256/"

const digestPrefix = "sha256:"

// maxLayers is what overlayfs manages (500) beside the skeleton, an agent's end state and
// what a grader adds. A fork stands on fewer: see maxStack.
const maxLayers = 480

func sum(data []byte) string {
	h := sha256.Sum256(data)
	return hex.EncodeToString(h[:])
}

// encodeImage makes the image config of a world; its digest is the world's id. There is
// no time in it, so equal content has an equal id.
func encodeImage(c Config, diffIDs []string) ([]byte, error) {
	img := imageConfig{
		Platform: specs.Platform{Architecture: runtime.GOARCH, OS: "linux"},
		Config: docker.DockerOCIImageConfig{
			ImageConfig: specs.ImageConfig{
				User: c.User, ExposedPorts: set(c.ExposedPorts), Env: c.Env, Entrypoint: c.Entrypoint, Cmd: c.Cmd, Volumes: set(c.Volumes),
				WorkingDir: c.WorkingDir, StopSignal: c.StopSignal,
			},
			DockerOCIImageConfigExt: docker.DockerOCIImageConfigExt{Healthcheck: (*docker.HealthcheckConfig)(c.Healthcheck), OnBuild: c.OnBuild, Shell: c.Shell},
		},
		RootFS: specs.RootFS{Type: "layers", DiffIDs: []digest.Digest{}},
	}
	for _, id := range diffIDs {
		img.RootFS.DiffIDs = append(img.RootFS.DiffIDs, digest.Digest(id))
	}
	labels := map[string]string{}
	maps.Copy(labels, c.Labels)
	if len(c.Tools) > 0 {
		text, err := json.Marshal(c.Tools)
		if err != nil {
			return nil, refuse("bad_recipe", "", "tools: %v", err)
		}
		labels[labelTools] = string(text)
	}
	if len(c.Setup) > 0 {
		text, err := json.Marshal(c.Setup)
		if err != nil {
			return nil, err
		}
		labels[labelSetup] = string(text)
	}
	if len(labels) > 0 {
		img.Config.Labels = labels
	}
	return json.Marshal(img)
}

// imageConfig is an image config with what Docker adds to OCI's. Its fields stand in the
// order of specs.Image, for the order decides the id.
type imageConfig struct {
	Created *time.Time `json:"created,omitempty"`
	Author  string     `json:"author,omitempty"`
	specs.Platform
	Config  docker.DockerOCIImageConfig `json:"config"`
	RootFS  specs.RootFS                `json:"rootfs"`
	History []specs.History             `json:"history,omitempty"`
}

func set(all []string) map[string]struct{} {
	if len(all) == 0 {
		return nil
	}
	out := make(map[string]struct{}, len(all))
	for _, name := range all {
		out[name] = struct{}{}
	}
	return out
}

// decodeImage reads an image config that may come from anywhere.
func decodeImage(data []byte) (Config, []string, error) {
	var img imageConfig
	if err := json.Unmarshal(data, &img); err != nil {
		return Config{}, nil, refuse("bad_archive", "config", "%v", err)
	}
	if img.OS != "linux" || img.Architecture != runtime.GOARCH {
		return Config{}, nil, refuse("world_invalid", "config", "is for %s/%s, this host is linux/%s", img.OS, img.Architecture, runtime.GOARCH)
	}
	if img.RootFS.Type != "layers" || len(img.RootFS.DiffIDs) > maxLayers {
		return Config{}, nil, refuse("world_invalid", "config", "rootfs of type %q with %d layers; at most %d", img.RootFS.Type, len(img.RootFS.DiffIDs), maxLayers)
	}
	c := Config{
		Env: img.Config.Env, WorkingDir: img.Config.WorkingDir, User: img.Config.User,
		Entrypoint: img.Config.Entrypoint, Cmd: img.Config.Cmd,
		ImageWords: ImageWords{
			ExposedPorts: slices.Sorted(maps.Keys(img.Config.ExposedPorts)), Volumes: slices.Sorted(maps.Keys(img.Config.Volumes)),
			StopSignal: img.Config.StopSignal, Healthcheck: (*Healthcheck)(img.Config.Healthcheck), OnBuild: img.Config.OnBuild, Shell: img.Config.Shell,
		},
	}
	if err := c.setLabels(img.Config.Labels); err != nil {
		return Config{}, nil, refuse("bad_archive", "config", "%v", err)
	}
	var layers []string
	for _, id := range img.RootFS.DiffIDs {
		if id.Validate() != nil || id.Algorithm() != digest.SHA256 {
			return Config{}, nil, refuse("bad_archive", "config", "diffID %q is no sha256 digest", id)
		}
		layers = append(layers, id.String())
	}
	return c, layers, nil
}

// setLabels takes an image's labels, and what they say to paddock.
func (c *Config) setLabels(labels map[string]string) error {
	own := map[string]any{labelTools: &c.Tools, labelSetup: &c.Setup}
	for name, text := range labels {
		into, ok := own[name]
		if !ok {
			if c.Labels == nil {
				c.Labels = map[string]string{}
			}
			c.Labels[name] = text
			continue
		}
		if err := json.Unmarshal([]byte(text), into); err != nil {
			return fmt.Errorf("label %s: %w", name, err)
		}
	}
	return nil
}

// SetLabel sets a label. One that is paddock's own, run.paddock.tools or run.paddock.setup,
// sets what it stands for.
func (c *Config) SetLabel(name, text string) error { return c.setLabels(map[string]string{name: text}) }

// encodeManifest makes the manifest of a world as it is exported.
func encodeManifest(configID string, configSize int64, layers []layer) ([]byte, error) {
	m := specs.Manifest{
		Versioned: specsgo.Versioned{SchemaVersion: 2}, MediaType: specs.MediaTypeImageManifest,
		Config: specs.Descriptor{MediaType: specs.MediaTypeImageConfig, Digest: digest.Digest(configID), Size: configSize},
		Layers: []specs.Descriptor{},
	}
	for _, l := range layers {
		m.Layers = append(m.Layers, l.descriptor())
	}
	return json.Marshal(m)
}

// descriptor says how a layer is exported: as its canonical tar, or for one that came
// from elsewhere and cannot be made again as the blob that it came in.
func (l layer) descriptor() specs.Descriptor {
	if l.Blob != "" {
		return specs.Descriptor{MediaType: l.BlobType, Digest: digest.Digest(digestPrefix + l.Blob), Size: l.BlobSize}
	}
	return specs.Descriptor{MediaType: specs.MediaTypeImageLayer, Digest: digest.Digest(l.DiffID), Size: l.TarSize}
}

// Override is base with what c sets in its place, field by field.
func (c Config) Override(base Config) Config { return c.override(base) }

// override is base with what c sets in its place, field by field.
func (c Config) override(base Config) Config {
	if c.Env != nil {
		base.Env = c.Env
	}
	if c.WorkingDir != "" {
		base.WorkingDir = c.WorkingDir
	}
	if c.User != "" {
		base.User = c.User
	}
	if c.Entrypoint != nil {
		base.Entrypoint = c.Entrypoint
	}
	if c.Cmd != nil {
		base.Cmd = c.Cmd
	}
	if c.Tools != nil {
		base.Tools = c.Tools
	}
	if c.Setup != nil {
		base.Setup = c.Setup
	}
	if c.Labels != nil {
		base.Labels = c.Labels
	}
	if c.ExposedPorts != nil {
		base.ExposedPorts = c.ExposedPorts
	}
	if c.Volumes != nil {
		base.Volumes = c.Volumes
	}
	if c.StopSignal != "" {
		base.StopSignal = c.StopSignal
	}
	if c.Healthcheck != nil {
		base.Healthcheck = c.Healthcheck
	}
	if c.OnBuild != nil {
		base.OnBuild = c.OnBuild
	}
	if c.Shell != nil {
		base.Shell = c.Shell
	}
	return base
}

// check refuses a config that no sandbox could follow.
func (c Config) check() error {
	for _, e := range c.Env {
		if i := slices.Index([]byte(e), '='); i < 1 || slices.Contains([]byte(e), 0) {
			return refuse("bad_recipe", "", "env %q is not NAME=value", e)
		}
	}
	if c.WorkingDir != "" && c.WorkingDir[0] != '/' {
		return refuse("bad_recipe", "", "working_dir %q is not absolute", c.WorkingDir)
	}
	seen := map[string]bool{}
	for _, t := range c.Tools {
		if t.Name == "" || seen[t.Name] || len(t.Command) == 0 {
			return refuse("bad_recipe", "", "tool %q needs a name of its own and a command", t.Name)
		}
		if len(t.Parameters) > 0 && !json.Valid(t.Parameters) {
			return refuse("bad_recipe", "", "tool %q: parameters are no JSON", t.Name)
		}
		seen[t.Name] = true
	}
	return nil
}

func shortID(id string) string {
	return fmt.Sprintf("%.19s", id)
}
