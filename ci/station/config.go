package station

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"slipway/ci/fleet"
	"slipway/ci/job"
	"slipway/flash/device"
	"slipway/images"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
	"slipway/layers/run"
	"slipway/layers/yaml"
)

// Config is the content of station.yml.
type Config struct {
	Parallel  int                   `yaml:"parallel"`  // jobs at once
	Inventory string                `yaml:"inventory"` // of boards that are reached by SSH; "": none
	Boards    map[string]Named      `yaml:"boards"`
	Virtual   []string              `yaml:"virtual"` // kinds of virtual boards that this machine runs
	Places    map[string]NamedPlace `yaml:"places"`
	Does      []job.Do              `yaml:"does"`    // steps; empty: all but build
	Clone     string                `yaml:"clone"`   // of Slipway, where builds are done; "": a folder of the state, for boards that need none
	KeepGiB   int                   `yaml:"keepGiB"` // of pulled artifacts

	path      string
	places    map[string]string // FILE:LINE:COLUMN of each key
	users     map[string]string // names by the ports and devices that they have
	inventory *fleet.Inventory
}

// Named is a board that is connected to this machine.
type Named struct {
	Board    string   `yaml:"board"`    // its kind
	Port     string   `yaml:"port"`     // where it is plugged in, as "devices" names it
	Device   string   `yaml:"device"`   // instead of a port: file:PATH, or an rshim
	Host     string   `yaml:"host"`     // USER@ADDRESS, if SSH reaches it too
	Power    []string `yaml:"power"`    // program that switches it off and on
	Recovery []string `yaml:"recovery"` // program that brings it into recovery mode
}

const (
	maxConfigBytes  = 1 << 20
	defaultParallel = 4
	defaultKeepGiB  = 50
)

// LoadConfig reads station.yml, and the inventory that it names. Without a path it is a station
// without boards.
func LoadConfig(path string) (*Config, error) {
	data := []byte("{}")
	if path != "" {
		var err error
		if data, err = localfile.Read(path, maxConfigBytes); err != nil {
			return nil, localfile.ExplainUnreadable(path, err)
		}
	}
	return parseConfig(path, data)
}

func parseConfig(path string, data []byte) (*Config, error) {
	c := &Config{Parallel: defaultParallel, KeepGiB: defaultKeepGiB, path: path, places: map[string]string{}, users: map[string]string{}}
	if err := yaml.Load(path, data, c, c.places); err != nil {
		return nil, err
	}
	for _, check := range []func() error{c.checkValues, c.checkBoards, c.checkVirtual, c.checkPlaces, c.readInventory} {
		if err := check(); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// errorAt returns an error that begins with the place of a key.
func (c *Config) errorAt(key, format string, args ...any) error {
	return fmt.Errorf("%s: %w", cmp.Or(c.places[key], c.path), fmt.Errorf(format, args...))
}

func (c *Config) checkValues() error {
	if c.Parallel < 1 || c.Parallel > fleet.MaxParallel {
		return c.errorAt("parallel", "%d is no number of jobs at once: want 1 to %d", c.Parallel, fleet.MaxParallel)
	}
	for _, do := range c.Does {
		if known := append(slices.Clone(job.All), job.Build); !slices.Contains(known, do) {
			return c.errorAt("does", "the step %q is unknown%s; have %v", do, plaintext.DidYouMean(string(do), texts(known)), known)
		}
	}
	if len(c.Does) == 0 {
		c.Does = job.All
	}
	if c.Clone != "" {
		if c.Clone = c.beside(c.Clone); !images.InClone(c.Clone) {
			return c.errorAt("clone", "%s is in no clone of Slipway", c.Clone)
		}
	}
	if c.KeepGiB < 1 || c.KeepGiB > 1<<20 {
		return c.errorAt("keepGiB", "%d is not between 1 and %d", c.KeepGiB, 1<<20)
	}
	return nil
}

func texts[T ~string](all []T) (texts []string) {
	for _, v := range all {
		texts = append(texts, string(v))
	}
	return texts
}

// checkBoards returns an error for a board that is not described well, or shares its device.
func (c *Config) checkBoards() error {
	for _, name := range slices.Sorted(maps.Keys(c.Boards)) {
		b, key := c.Boards[name], "boards."+name
		if file, isFile := strings.CutPrefix(b.Device, device.FilePrefix); isFile { // each job has a folder of its own
			b.Device = device.FilePrefix + localfile.ResolveLinks(c.beside(file))
			c.Boards[name] = b
		}
		at := cmp.Or(b.Port, b.Device)
		if err := cmp.Or(job.CheckName("the board's name", name), job.CheckName("board", b.Board)); err != nil {
			return c.errorAt(key, "%w", err)
		}
		switch {
		case b.Port != "" && b.Device != "":
			return c.errorAt(key, "%s has a port and a device: keep one", name)
		case at == "" && b.Host == "" && c.Inventory == "":
			return c.errorAt(key, "%s has neither port, device nor host\nnext: slipway devices  # it prints the ports", name)
		case strings.HasPrefix(at, "/dev/") && !isRShim(at) || strings.HasPrefix(at, "-"):
			return c.errorAt(key, "%q may be another device tomorrow: name its port\nnext: slipway devices  # it prints the ports", at)
		case c.users[at] != "":
			return c.errorAt(key, "%s and %s are both at %s", c.users[at], name, at)
		case strings.HasPrefix(b.Host, "-") || strings.ContainsAny(b.Host, " \t\n"):
			return c.errorAt(key+".host", "%q is no USER@ADDRESS", b.Host)
		}
		if at != "" {
			c.users[at] = name
		}
		for _, program := range [][]string{b.Power, b.Recovery} {
			if len(program) > 0 {
				if _, err := run.LookPath(program[0]); err != nil {
					return c.errorAt(key, "%s: %w", name, err)
				}
			}
		}
	}
	return nil
}

func isRShim(path string) bool { return device.SpecialKind(path) == device.RShim }

// checkVirtual returns an error for a virtual board whose name another board has.
func (c *Config) checkVirtual() error {
	for i, kind := range c.Virtual {
		if err := job.CheckName("the board", kind); err != nil {
			return c.errorAt("virtual", "%w", err)
		}
		if _, taken := c.Boards[kind]; taken || slices.Contains(c.Virtual[:i], kind) {
			return c.errorAt("virtual", "%s is the name of another board here", kind)
		}
	}
	return nil
}

// beside returns a path that station.yml names, relative to itself, as an absolute one.
func (c *Config) beside(name string) string {
	if !filepath.IsAbs(name) {
		name = filepath.Join(filepath.Dir(c.path), name)
	}
	if abs, err := filepath.Abs(name); err == nil {
		return abs
	}
	return name
}

// readInventory reads the inventory.
func (c *Config) readInventory() (err error) {
	if c.Inventory == "" {
		return nil
	}
	if c.inventory, err = fleet.Load(c.beside(c.Inventory)); err != nil {
		return c.errorAt("inventory", "%w", err)
	}
	for _, h := range c.inventory.Hosts {
		if _, place := c.Places[h.Name]; place || slices.Contains(c.Virtual, h.Name) {
			return c.errorAt(plaintext.Either(place, "places", "virtual"), "%s is a host of the inventory, too", h.Name)
		}
	}
	return nil
}

// inventoryOf returns an inventory of one host. JSON is YAML, and quotes all that a host may be called.
func inventoryOf(name string, a fleet.Access) (string, error) {
	vars := map[string]string{
		"ansible_host": a.Host, "ansible_user": a.User, "ansible_ssh_private_key_file": a.Identity, "slipway_host_key": a.HostKey,
		"slipway_serial": a.Serial, "slipway_board": a.Board,
	}
	if a.Port != 0 {
		vars["ansible_port"] = strconv.Itoa(a.Port)
	}
	if len(a.Jump) > 0 {
		vars["ansible_ssh_common_args"] = "-J " + plaintext.Quote(strings.Join(a.Jump, ","))
	}
	if a.Become != "" {
		vars["ansible_become"], vars["ansible_become_user"] = "true", a.Become
	}
	if a.Limit != 0 {
		vars["slipway_limit"] = a.Limit.String()
	}
	maps.DeleteFunc(vars, func(_, value string) bool { return value == "" })
	data, err := json.Marshal(map[string]any{"all": map[string]any{"hosts": map[string]any{name: vars}}})
	return string(data), err
}
