package images

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"time"

	"slipway/layers/localfile"
	"slipway/layers/yaml"
)

// Policy says which artifacts may be written to a board. Package evidence applies the rules.
type Policy struct {
	// Signers is a file of those who may sign: OpenSSH's allowed signers, or a
	// keyring of GPG. It lies beside the policy's file, or its path is absolute.
	Signers   string   `yaml:"signers" json:"signers,omitempty"`
	Builders  []string `yaml:"builders" json:"builders,omitempty"`   // patterns of the builders that the provenance may name
	Committed bool     `yaml:"committed" json:"committed,omitempty"` // nothing in the sources was edited
	Since     string   `yaml:"since" json:"since,omitempty"`         // a date or a time: no build is older
	Newest    bool     `yaml:"newest" json:"newest,omitempty"`       // no build is older than the last that this machine wrote
	Packages  bool     `yaml:"packages" json:"packages,omitempty"`   // there is a bill of material
	Licences  Licences `yaml:"licences" json:"licences,omitzero"`
	Flaws     Flaws    `yaml:"flaws" json:"flaws,omitzero"`
}

// Licences lists patterns of licences that no package may have.
type Licences struct {
	Refuse []string `yaml:"refuse" json:"refuse,omitempty"`
	Except []string `yaml:"except" json:"except,omitempty"` // packages
}

// Flaws limits the CVSS score of open flaws.
type Flaws struct {
	Below  float64  `yaml:"below" json:"below,omitempty"`   // a score of CVSS
	Except []string `yaml:"except" json:"except,omitempty"` // identifiers, as CVE-2026-12345
}

// ParsePolicy parses and validates a policy in a file of its own. file is its name in errors.
func ParsePolicy(file string, data []byte) (Policy, error) {
	var p Policy
	places := map[string]string{}
	if err := yaml.Load(file, data, &p, places); err != nil {
		return p, err
	}
	key, err := p.validate()
	if err == nil {
		key, err = p.findEmpty("", places)
	}
	if err == nil {
		return p, nil
	}
	place := cmp.Or(places[key], file)
	return p, fmt.Errorf("%s: %w", place, err)
}

// ReadPolicy reads, parses and validates a policy file of this machine.
func ReadPolicy(file string) (Policy, error) {
	data, err := localfile.Read(file, maxBoardFileBytes)
	if err != nil {
		return Policy{}, localfile.ExplainUnreadable(file, err)
	}
	return ParsePolicy(file, data)
}

// ParseSince parses the policy's since: a date, which is midnight UTC, or a time as in RFC 3339.
func (p Policy) ParseSince() (time.Time, error) {
	if day, err := time.Parse(time.DateOnly, p.Since); err == nil {
		return day, nil
	}
	t, err := time.Parse(time.RFC3339, p.Since)
	if err != nil {
		err = fmt.Errorf("%q is no date as 2026-11-28, and no time as 2026-11-28T12:00:00Z", p.Since)
	}
	return t, err
}

// findEmpty returns an error and the key if builders or signers is in the file (places), but empty:
// it would drop the rule of an extended board. under is the prefix of the keys in places.
func (p Policy) findEmpty(under string, places map[string]string) (key string, err error) {
	empty := map[string]bool{"signers": p.Signers == "", "builders": len(p.Builders) == 0}
	for _, key := range slices.Sorted(maps.Keys(empty)) {
		if empty[key] && places[under+key] != "" {
			return key, fmt.Errorf("%s: it is empty; write its value, or remove the key", key)
		}
	}
	return "", nil
}

// validate returns the first key with a wrong value, or without another key that it needs, and why.
// A policy without any rule is an error of no key.
func (p Policy) validate() (key string, err error) {
	if p.Signers == "" && len(p.Builders) == 0 && !p.Committed && p.Since == "" && !p.Newest &&
		!p.Packages && len(p.Licences.Refuse) == 0 && p.Flaws.Below == 0 {
		return "", fmt.Errorf("the policy asks for nothing; name one of signers, builders, committed, since, newest, packages, licences.refuse and flaws.below")
	}
	if p.Since != "" {
		if _, err := p.ParseSince(); err != nil {
			return "since", fmt.Errorf("since: %w", err)
		}
	}
	if below := p.Flaws.Below; !(below >= 0 && below <= 10) {
		return "flaws.below", fmt.Errorf("flaws.below: %v is not between 0 and 10, the scores of CVSS", below)
	}
	if len(p.Flaws.Except) > 0 && p.Flaws.Below == 0 {
		return "flaws.except", fmt.Errorf("flaws.except: it needs flaws.below")
	}
	if len(p.Licences.Except) > 0 && len(p.Licences.Refuse) == 0 {
		return "licences.except", fmt.Errorf("licences.except: it needs licences.refuse")
	}
	lists := map[string][]string{
		"builders": p.Builders, "licences.refuse": p.Licences.Refuse, "licences.except": p.Licences.Except, "flaws.except": p.Flaws.Except,
	}
	for _, key := range slices.Sorted(maps.Keys(lists)) {
		for _, pattern := range lists[key] {
			if _, err := path.Match(pattern, ""); err != nil || pattern == "" {
				return key, fmt.Errorf("%s: %q is no name and no pattern of names", key, pattern)
			}
		}
	}
	if len(p.Builders) > 0 && p.Signers == "" {
		return "builders", fmt.Errorf("builders: it needs signers: whoever supplies an artifact can name any builder in it")
	}
	return "", nil
}

// validatePolicy returns an error for a policy in board.yml that is empty or invalid, or that names
// a file missing from the board's folder. It looks for no file with an absolute path.
func (s Spec) validatePolicy() error {
	if s.Policy == nil {
		if s.places["policy"] != "" {
			return fmt.Errorf("%s: policy: it is empty; write its keys, or remove it", s.PlaceOf("policy"))
		}
		return nil
	}
	key, err := s.Policy.validate()
	if err == nil {
		key, err = s.Policy.findEmpty("policy.", s.places)
	}
	if err != nil {
		at := "policy"
		if key != "" {
			at += "." + key
		}
		return fmt.Errorf("%s: policy: %w", s.PlaceOf(at), err)
	}
	if name := s.Policy.Signers; name != "" && !filepath.IsAbs(name) {
		if _, err := s.File(name); err != nil {
			return fmt.Errorf("%s: policy.signers: %w", s.PlaceOf("policy.signers"), err)
		}
	}
	return nil
}
