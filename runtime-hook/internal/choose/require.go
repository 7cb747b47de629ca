package choose

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// requireMounts is a variable of old L4T images. It requests files and is no requirement.
const requireMounts = "NVIDIA_REQUIRE_JETPACK_HOST_MOUNTS"

// requirement is an NVIDIA_REQUIRE_* variable: it holds if all conditions of one alternative hold.
type requirement struct {
	variable, value string
	alternatives    [][]condition
}

type condition struct {
	property string
	operator operator
	version  version // set unless the property is brand
	text     string  // the value as text
}

// operator compares versions. holds takes the order of the board's version and the required one.
type operator struct {
	text  string
	holds func(order int) bool
}

// operators are ordered so that no operator is a prefix of a later one.
var operators = []operator{
	{"!=", func(order int) bool { return order != 0 }},
	{"<=", func(order int) bool { return order <= 0 }},
	{">=", func(order int) bool { return order >= 0 }},
	{"=", func(order int) bool { return order == 0 }},
	{"<", func(order int) bool { return order < 0 }},
	{">", func(order int) bool { return order > 0 }},
}

// parseRequirements parses the NVIDIA_REQUIRE_* variables but requireMounts, sorted by name; none
// if they are disabled.
func parseRequirements(vars map[string]string) ([]requirement, error) {
	if skip, _ := strconv.ParseBool(vars[disableRequire]); skip {
		return nil, nil
	}
	var out []requirement
	for variable, value := range vars {
		if !strings.HasPrefix(variable, requirePrefix) || variable == requireMounts {
			continue
		}
		r := requirement{variable: variable, value: value}
		for _, alternative := range strings.Fields(value) {
			conditions, err := parseConditions(alternative)
			if err != nil {
				return nil, fmt.Errorf("%.80s of the image cannot be read: %w; set NVIDIA_DISABLE_REQUIRE=1 in the container to go without", variable, err)
			}
			if len(conditions) > 0 {
				r.alternatives = append(r.alternatives, conditions)
			}
		}
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b requirement) int { return cmp.Compare(a.variable, b.variable) })
	return out, nil
}

// parseConditions parses a comma list. It skips conditions not about a board, such as csv-mounts.
func parseConditions(s string) ([]condition, error) {
	var out []condition
	for _, word := range strings.Split(s, ",") {
		if word == "" {
			continue
		}
		c, err := parseCondition(word)
		if err != nil {
			return nil, err
		}
		if isKnown(c.property) {
			out = append(out, c)
		}
	}
	return out, nil
}

func isKnown(property string) bool {
	return slices.Contains([]string{"arch", "brand", "cuda", "driver", "jetpack"}, property)
}

// parseCondition parses PROPERTY OPERATOR VERSION, such as cuda>=11.4. For brand, and a property
// that no board has, it keeps the version only as text.
func parseCondition(word string) (condition, error) {
	at := strings.IndexAny(word, "<>=!")
	if at < 1 {
		return condition{}, fmt.Errorf("%.80q is no condition such as cuda>=11.4", word)
	}
	c := condition{property: word[:at]}
	for _, o := range operators {
		if value, ok := strings.CutPrefix(word[at:], o.text); ok {
			c.operator, c.text = o, value
			break
		}
	}
	if c.operator.holds == nil {
		return condition{}, fmt.Errorf("%.80q has no operator (have != <= >= = < >)", word)
	}
	if c.property == "brand" || !isKnown(c.property) {
		return c, nil
	}
	var err error
	if c.version, err = parseVersion(c.text); err != nil {
		return condition{}, fmt.Errorf("%.80q: %w", word, err)
	}
	return c, nil
}

// maxParts limits the numbers of a version.
const maxParts = 8

var errVersion = errors.New("not a version such as 11.4")

// Newer reports whether a and b are versions and a is newer.
func Newer(a, b string) bool {
	x, err := parseVersion(a)
	if err != nil {
		return false
	}
	y, err := parseVersion(b)
	return err == nil && x.compare(y) > 0
}

// version has the numbers of a version, followed by zeros: 12 is 12.0.
type version [maxParts]uint32

func (v version) compare(w version) int { return slices.Compare(v[:], w[:]) }

// parseVersion parses up to maxParts numbers with dots between them, after a v if it has one.
func parseVersion(s string) (v version, err error) {
	parts := strings.Split(strings.TrimPrefix(s, "v"), ".")
	if len(parts) > maxParts {
		return version{}, errVersion
	}
	for i, part := range parts {
		n, err := strconv.ParseUint(part, 10, 31)
		if err != nil {
			return version{}, errVersion
		}
		v[i] = uint32(n)
	}
	return v, nil
}

// truth is a three-valued result, ordered so that min means "and", and max means "or".
type truth int

const (
	no truth = iota
	unknown
	yes
)

// Check compares the image's requirements with the board at root. One that does not hold is an
// error; one about an unknown property becomes a note.
func (s Selection) Check(root string) (notes []string, err error) {
	if len(s.requires) == 0 {
		return nil, nil
	}
	b := ReadBoard(root)
	for _, r := range s.requires {
		switch r.holdsFor(b) {
		case no:
			return nil, fmt.Errorf("the image requires %.300q (%.80s), and the board has %s; take an image that is made for it, or set NVIDIA_DISABLE_REQUIRE=1 in the container to go without", r.value, r.variable, b.describeFor(r))
		case unknown:
			notes = append(notes, fmt.Sprintf("the image requires %.300q (%.80s), and the board does not tell: it has %s; NVIDIA_DISABLE_REQUIRE=1 in the container skips this", r.value, r.variable, b.describeFor(r)))
		}
	}
	return notes, nil
}

// holdsFor combines the conditions: "and" in an alternative, "or" between them; yes without any.
func (r requirement) holdsFor(b Board) truth {
	if len(r.alternatives) == 0 {
		return yes
	}
	or := no
	for _, conditions := range r.alternatives {
		and := yes
		for _, c := range conditions {
			and = min(and, c.holdsFor(b))
		}
		or = max(or, and)
	}
	return or
}

// holdsFor compares the board's version of the property; unknown if none. For brand, only != holds.
func (c condition) holdsFor(b Board) truth {
	have, err := parseVersion(b.propertyValue(c.property))
	switch {
	// Only graphics cards have a brand (brand=tesla). Images require it with a CUDA version, for older
	// drivers that still work. No SoC has one, so only != holds.
	case c.property == "brand" && c.operator.text == "!=" && c.text != "":
		return yes
	case c.property == "brand":
		return no
	case err != nil:
		return unknown
	case c.operator.holds(have.compare(c.version)):
		return yes
	}
	return no
}
