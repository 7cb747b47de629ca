package fleet

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// expandHosts expands a name with ranges, such as node[01:40:2] or rack[a:d]-[1:4], to all host
// names. It returns the port apart, if one follows the name.
func expandHosts(pattern string) (hosts []string, port string, err error) {
	name, port := splitPort(pattern)
	hosts, err = expandRanges(name, maxHosts)
	return hosts, port, err
}

// splitPort splits the port, or "", off host:22 or [IPv6]:22. Colons in ranges and in an IPv6
// address without brackets are no ports.
func splitPort(s string) (name, port string) {
	i := strings.LastIndexByte(s, ':')
	if i <= 0 || strings.LastIndexByte(s, ']') > i {
		return s, ""
	}
	name, port = s[:i], s[i+1:]
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return s, ""
	}
	if inner, ok := strings.CutPrefix(name, "["); ok && strings.HasSuffix(inner, "]") && strings.Count(inner, ":") > 2 {
		return strings.TrimSuffix(inner, "]"), port
	}
	if strings.Contains(outsideBrackets(name), ":") {
		return s, ""
	}
	return name, port
}

// outsideBrackets returns the text without the parts in [].
func outsideBrackets(s string) string {
	var b strings.Builder
	depth := 0
	for _, r := range s {
		switch {
		case r == '[':
			depth++
		case r == ']':
			depth--
		case depth == 0:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// expandRanges expands all ranges in [] of a name. More than limit names are an error.
func expandRanges(name string, limit int) ([]string, error) {
	head, rest, found := strings.Cut(name, "[")
	if !found {
		return []string{name}, nil
	}
	bounds, tail, closed := strings.Cut(rest, "]")
	if !closed {
		return nil, fmt.Errorf("%q: [ without ]", name)
	}
	middle, err := rangeMembers(bounds)
	if err != nil {
		return nil, fmt.Errorf("%q: %w", name, err)
	}
	tails, err := expandRanges(tail, limit)
	if err != nil {
		return nil, err
	}
	if len(middle)*len(tails) > limit {
		return nil, fmt.Errorf("%q: more than %d hosts", name, limit)
	}
	var all []string
	for _, m := range middle {
		for _, t := range tails {
			all = append(all, head+m+t)
		}
	}
	return all, nil
}

// rangeMembers lists the members of a range, including its end, such as 1:9, 01:40:2 or a:f.
func rangeMembers(bounds string) ([]string, error) {
	part := strings.Split(bounds, ":")
	if len(part) < 2 || len(part) > 3 {
		return nil, errors.New("want [begin:end] or [begin:end:step]")
	}
	step := 1
	if len(part) == 3 {
		var err error
		if step, err = strconv.Atoi(part[2]); err != nil || step < 1 {
			return nil, fmt.Errorf("step %q is not a number above 0", part[2])
		}
	}
	begin, end := cmp.Or(part[0], "0"), part[1]
	if isLetter(begin) && isLetter(end) {
		return letterRange(begin[0], end[0], step)
	}
	return numberRange(begin, end, step)
}

func isLetter(s string) bool { return len(s) == 1 && letterRank(s[0]) >= 0 }

// alphabet is in Python's order, as in Ansible: small letters before capitals.
const alphabet = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

func letterRank(c byte) int { return strings.IndexByte(alphabet, c) }

// letterRange lists every step-th letter from begin to end.
func letterRange(begin, end byte, step int) ([]string, error) {
	from, to := letterRank(begin), letterRank(end)
	if from > to {
		return nil, fmt.Errorf("%c is after %c", begin, end)
	}
	var all []string
	for i := from; i <= to; i += min(step, len(alphabet)) {
		all = append(all, alphabet[i:i+1])
	}
	return all, nil
}

// numberRange lists every step-th number from begin to end. Leading zeros of begin set the width of
// all numbers. More than maxHosts numbers are an error.
func numberRange(begin, end string, step int) ([]string, error) {
	from, err1 := strconv.ParseUint(begin, 10, 31)
	to, err2 := strconv.ParseUint(end, 10, 31)
	if err1 != nil || err2 != nil {
		return nil, fmt.Errorf("%s and %s must both be numbers, or both one letter", begin, cmp.Or(end, "nothing"))
	}
	width := 0
	if len(begin) > 1 && begin[0] == '0' {
		if width = len(begin); len(end) != width {
			return nil, fmt.Errorf("%s and %s must have the same number of digits", begin, end)
		}
	}
	if from > to {
		return nil, fmt.Errorf("%s is after %s", begin, end)
	}
	if (to-from)/uint64(step) >= maxHosts {
		return nil, fmt.Errorf("more than %d hosts", maxHosts)
	}
	var all []string
	for n := from; n <= to; n += uint64(step) {
		all = append(all, fmt.Sprintf("%0*d", width, n))
	}
	return all, nil
}
