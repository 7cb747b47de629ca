package ci

import (
	"cmp"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// version is one of Semantic Versioning. Numbers that are left out are 0.
type version struct {
	numbers [3]uint64
	given   int // how many of them were written
	pre     []string
}

var versionPattern = regexp.MustCompile(`^v?(\d{1,18})(?:\.(\d{1,18}))?(?:\.(\d{1,18}))?(?:-([0-9A-Za-z.-]+))?(?:\+[0-9A-Za-z.-]+)?$`)

func parseVersion(text string) (version, bool) {
	m := versionPattern.FindStringSubmatch(text)
	if m == nil {
		return version{}, false
	}
	var v version
	for i := range v.numbers {
		if m[i+1] != "" {
			v.given = i + 1
			v.numbers[i], _ = strconv.ParseUint(m[i+1], 10, 64)
		}
	}
	if m[4] != "" {
		v.pre = strings.Split(m[4], ".")
	}
	return v, true
}

// compare orders versions as semver.org says: one with a pre-release comes before
// the same without.
func (v version) compare(w version) int {
	for i := range v.numbers {
		if c := cmp.Compare(v.numbers[i], w.numbers[i]); c != 0 {
			return c
		}
	}
	if len(v.pre) == 0 || len(w.pre) == 0 {
		return cmp.Compare(len(w.pre), len(v.pre))
	}
	for i := range min(len(v.pre), len(w.pre)) {
		if c := comparePre(v.pre[i], w.pre[i]); c != 0 {
			return c
		}
	}
	return cmp.Compare(len(v.pre), len(w.pre))
}

// comparePre puts numbers in their order and before words.
func comparePre(a, b string) int {
	n, errA := strconv.ParseUint(a, 10, 64)
	m, errB := strconv.ParseUint(b, 10, 64)
	switch {
	case errA == nil && errB == nil:
		return cmp.Compare(n, m)
	case errA == nil:
		return -1
	case errB == nil:
		return 1
	}
	return strings.Compare(a, b)
}

// versionTest says whether a version is one that is wanted.
type versionTest func(version) bool

var comparisonPattern = regexp.MustCompile(`^(>=|<=|==|!=|=|>|<|!|)(.+)$`)

// parseConstraint reads what goss takes: comparisons with spaces between them,
// which must all hold, and || between such groups.
func parseConstraint(text string) (versionTest, error) {
	var groups [][]versionTest
	for group := range strings.SplitSeq(text, "||") {
		var tests []versionTest
		for _, word := range strings.Fields(group) {
			test, err := parseComparison(word)
			if err != nil {
				return nil, err
			}
			tests = append(tests, test)
		}
		if len(tests) == 0 {
			return nil, fmt.Errorf("%q lacks a comparison like >=1.2.0", text)
		}
		groups = append(groups, tests)
	}
	return func(v version) bool { return anyGroup(groups, v) }, nil
}

func anyGroup(groups [][]versionTest, v version) bool {
	for _, tests := range groups {
		holds := true
		for _, test := range tests {
			holds = holds && test(v)
		}
		if holds {
			return true
		}
	}
	return false
}

// parseComparison reads one like >=1.2.0, or 1.2.x for any version that begins so.
func parseComparison(word string) (versionTest, error) {
	m := comparisonPattern.FindStringSubmatch(word)
	if m == nil {
		return nil, fmt.Errorf("%q is not a comparison like >=1.2.0", word)
	}
	sign, rest := m[1], m[2]
	plain := strings.TrimSuffix(strings.TrimSuffix(rest, ".x"), ".x")
	want, ok := parseVersion(plain)
	switch {
	case !ok:
		return nil, fmt.Errorf("%q is not a version like 1.2.0", rest)
	case plain == rest:
		want.given = 3
	case strings.Contains("><", sign[:min(1, len(sign))]) && sign != "":
		return nil, fmt.Errorf("%q: x goes with = and != alone", word)
	}
	return comparison(sign, want), nil
}

func comparison(sign string, want version) versionTest {
	same := func(v version) bool {
		if want.given == 3 {
			return v.compare(want) == 0
		}
		return v.numbers[0] == want.numbers[0] && (want.given == 1 || v.numbers[1] == want.numbers[1])
	}
	switch sign {
	case ">":
		return func(v version) bool { return v.compare(want) > 0 }
	case ">=":
		return func(v version) bool { return v.compare(want) >= 0 }
	case "<":
		return func(v version) bool { return v.compare(want) < 0 }
	case "<=":
		return func(v version) bool { return v.compare(want) <= 0 }
	case "!", "!=":
		return func(v version) bool { return !same(v) }
	}
	return same
}

// semver wants every line to be a version that the constraint allows.
func semver(text string, allows versionTest) matcher {
	return matcher{words: "a version " + text, ok: func(value string) bool {
		all := lines(value)
		for _, line := range all {
			v, ok := parseVersion(strings.TrimSpace(line))
			if !ok || !allows(v) {
				return false
			}
		}
		return len(all) > 0
	}}
}
