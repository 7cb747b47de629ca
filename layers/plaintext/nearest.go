package plaintext

import (
	"slices"
	"strings"
)

// Nearest names what a name that nobody knows may stand for: those that it is a part of,
// or else the one that the fewest letters tell it from, where those are few.
func Nearest(name string, known []string) string {
	near := slices.DeleteFunc(slices.Clone(known), func(k string) bool { return len(name) < 3 || !strings.Contains(k, name) })
	if len(near) == 0 && len(known) > 0 {
		nearest := slices.MinFunc(known, func(a, b string) int { return editDistance(name, a) - editDistance(name, b) })
		if editDistance(name, nearest) <= min(3, (len(name)+1)/2) {
			near = []string{nearest}
		}
	}
	if len(near) > 4 {
		return ""
	}
	return strings.Join(near, " or ")
}

// DidYouMean ends a sentence about an unknown name with a question about the nearest ones.
// It is empty where none is near.
func DidYouMean(name string, known []string) string {
	if near := Nearest(name, known); near != "" {
		return ": did you mean " + near + "?"
	}
	return ""
}

// editDistance counts the letters to add, remove or change to make b of a.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1) // for the part of a so far, and each beginning of b
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}
