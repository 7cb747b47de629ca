package place

import (
	"cmp"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"slipway/flash/device"
	"slipway/flash/identity"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
	"slipway/layers/run"
	"slipway/layers/yaml"
)

// Config is the content of place.yml.
type Config struct {
	Image     string            `yaml:"image"` // a path or an address; "": the board's artifact
	Digest    string            `yaml:"digest"`
	Signers   string            `yaml:"signers"`
	Ports     map[string]string `yaml:"ports"`     // by the port's name, what the screen calls it
	Overwrite bool              `yaml:"overwrite"` // also what holds another product
	Again     bool              `yaml:"again"`     // also what this place has written before
	LargestGB int64             `yaml:"largestGB"` // of a card
	Failures  int               `yaml:"failures"`  // in a row, after which a port is closed
	After     []string          `yaml:"after"`     // a program to run after each result
	Bell      bool              `yaml:"bell"`
	Record    string            `yaml:"record"`   // folder of receipts; "": record beside place.yml
	Identity  *identity.Config  `yaml:"identity"` // nil: all cards get the same content

	path   string
	plan   *identity.Plan    // of Identity
	noRows error             // a hub has the table of Identity, and no row is reserved here
	places map[string]string // FILE:LINE:COLUMN of each key
}

const maxConfigBytes = 1 << 20

// Load reads place.yml at path and checks all that can be checked without a device.
func Load(path string) (*Config, error) {
	data, err := localfile.Read(path, maxConfigBytes)
	if err != nil {
		return nil, fmt.Errorf("%w\nnext: place BOARD --ports  # it prints a place.yml for what is plugged in", err)
	}
	return parse(path, data)
}

func parse(path string, data []byte) (*Config, error) {
	c := &Config{path: path, places: map[string]string{}, Failures: 3, LargestGB: 256}
	if err := yaml.Load(path, data, c, c.places); err != nil {
		return nil, err
	}
	dir := filepath.Dir(path)
	c.Record = inFolder(dir, cmp.Or(c.Record, "record"))
	switch {
	case c.Failures < 1:
		return nil, c.errorAt("failures", "%d is no number of failures", c.Failures)
	case c.LargestGB < 1 || c.LargestGB > 1<<20:
		return nil, c.errorAt("largestGB", "%d is no size of a card", c.LargestGB)
	}
	if err := c.checkPorts(); err != nil {
		return nil, err
	}
	if err := c.checkAfter(); err != nil || c.Identity == nil {
		return c, err
	}
	if c.HubTable() != "" {
		return c, c.readReserved()
	}
	var err error
	c.plan, err = identity.NewPlan(path, *c.Identity, c.places)
	return c, err
}

// inFolder returns name, or if it is relative its path below dir.
func inFolder(dir, name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(dir, name)
}

// errorAt returns an error that begins with the place of a key.
func (c *Config) errorAt(key, format string, args ...any) error {
	return fmt.Errorf("%s: %w", cmp.Or(c.places[key], c.path), fmt.Errorf(format, args...))
}

// portName is a name of a port, as devices prints it: of USB, of a slot for cards, of an rshim, of
// a loop device's file, or a path in sysfs.
var portName = plaintext.Regexp(`^(usb:\d+-\d+(\.\d+)*(/\d+)?|mmc\d+|(usb|pcie|pcie-lf)-[\w:.-]+|loop:/.+|(pci|platform)[^/]*/.+)$`)

// checkPorts returns an error for a wrong, a missing or a second name of a port.
func (c *Config) checkPorts() error {
	if len(c.Ports) == 0 {
		return c.errorAt("ports", "no port is named, and only named ones are written\nnext: place BOARD --ports  # it prints the names of what is plugged in")
	}
	labels := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(c.Ports)) {
		switch {
		case strings.ContainsAny(name, "*?["):
			return c.errorAt("ports."+name, "%q is a pattern: name each port\nnext: place BOARD --ports", name)
		case strings.HasPrefix(name, "/dev/"):
			return c.errorAt("ports."+name, "%q is a device, whose name may be another one's tomorrow: name its port\nnext: place BOARD --ports", name)
		case !portName().MatchString(name) || strings.HasPrefix(name, "loop:") && filepath.Clean(name[5:]) != name[5:]:
			return c.errorAt("ports."+name, "%q is no name of a port, such as usb:1-2.3, usb:1-2/1 or mmc0\nnext: place BOARD --ports", name)
		}
		label := cmp.Or(c.Ports[name], name)
		if other, twice := labels[label]; twice {
			return c.errorAt("ports."+name, "%s and %s are both called %q: the worker could not tell them apart", other, name, label)
		}
		if strings.TrimSpace(label) == "" || len(label) > 40 || plaintext.Printable(label) != label {
			return c.errorAt("ports."+name, "%.60q is no name to show: want up to 40 printable characters", label)
		}
		labels[label], c.Ports[name] = name, label
	}
	return nil
}

// checkAfter returns an error if the program of after is not found.
func (c *Config) checkAfter() error {
	if len(c.After) == 0 {
		return nil
	}
	if strings.ContainsRune(c.After[0], '/') {
		path, err := filepath.Abs(inFolder(filepath.Dir(c.path), c.After[0]))
		if err != nil {
			return err
		}
		c.After[0] = path
	}
	if _, err := run.LookPath(c.After[0]); err != nil {
		return c.errorAt("after", "%w", err)
	}
	return nil
}

// CheckDevices returns an error if a device at a named port holds the running system.
func (c *Config) CheckDevices(plugged []device.Device) error {
	for _, d := range plugged {
		if _, named := c.Ports[d.Port]; named && d.HoldsSystem() {
			return c.errorAt("ports."+d.Port, "%s is plugged in there, and it is refused: %s\nnext: place BOARD --ports", d.Path, d.Refused)
		}
	}
	return nil
}
