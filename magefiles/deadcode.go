//go:build mage && deadcode

package main

// main reaches all targets, for the rule deadcode of check. Mage generates its own.
func main() {
	for _, target := range []func() error{Up, Build, Flash, Deploy, Update, Smoke, Slipway, Test, Check, Fmt, Fuzz, Bench, Soak} {
		_ = target()
	}
}
