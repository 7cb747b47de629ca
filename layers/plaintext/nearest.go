package plaintext

import (
	"slices"
	"strings"
)

// Nearest returns the known names that resemble an unknown one, joined by "or": those that contain
// it, or else those that differ in the fewest letters, at most a third of the name and three. It
// returns "" if more than four do.
func Nearest(name string, known []string) string {
	letters := len(strings.TrimLeft(name, "-"))
	near := slices.DeleteFunc(slices.Clone(known), func(k string) bool { return letters < 3 || !strings.Contains(k, name) })
	for most := 1; len(near) == 0 && most <= min(3, (letters+1)/3); most++ {
		near = slices.DeleteFunc(slices.Clone(known), func(k string) bool { return EditDistance(name, k) > most })
	}
	if len(near) > 4 {
		return ""
	}
	return strings.Join(near, " or ")
}

// DidYouMean returns ": did you mean NAME?" with the nearest known names, "" if none is near.
func DidYouMean(name string, known []string) string {
	if near := Nearest(name, known); near != "" {
		return ": did you mean " + near + "?"
	}
	return ""
}

// EditDistance counts the letters to add, remove, change or swap with the next to turn a into b.
func EditDistance(a, b string) int {
	rows := make([][]int, len(a)+1) // for each beginning of a, and each of b
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		for j := range rows[i] {
			switch {
			case i == 0 || j == 0:
				rows[i][j] = i + j
				continue
			case a[i-1] == b[j-1]:
				rows[i][j] = rows[i-1][j-1]
				continue
			}
			rows[i][j] = 1 + min(rows[i-1][j-1], rows[i-1][j], rows[i][j-1])
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}
