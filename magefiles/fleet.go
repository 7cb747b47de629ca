//go:build mage

package main

import (
	"os"

	"github.com/magefile/mage/mg"

	"slipway/ci/fleet"
)

// Fleet works on many boards at once.
type Fleet mg.Namespace

// List shows the hosts of an inventory, and how they are reached.
//
// The inventory is Ansible's, in YAML or as INI; what it says of logging in is kept to
// where Slipway can, and warned of or refused where not. The pattern is Ansible's too.
//
// Examples: "fleet:list hosts.yml"; "fleet:list hosts.yml -limit='racks:!rack2' -json".
func (Fleet) List(inventory string,
	limit *string, // only what this pattern of groups and hosts means
	json *bool, // print them as JSON
) error {
	return fleet.List(os.Stdout, os.Stderr, inventory, given(limit, ""), given(json, false))
}
