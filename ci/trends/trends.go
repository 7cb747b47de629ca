// Package trends finds what became slower, larger or worse over the runs of a branch.
package trends

const leastChange = 0.05
