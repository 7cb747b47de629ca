//go:build mage

package main

import (
	"context"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"slipway/ci/dev/bench"
	"slipway/ci/dev/release"
	"slipway/ci/dev/soak"
	"slipway/ci/dev/source"
	"slipway/magefiles/commands"
)

// root returns all commands, with those for Slipway's own source.
func root() *cobra.Command {
	return commands.Root(testCommand(), checkCommand(), fmtCommand(), fuzzCommand(), benchCommand(), soakCommand(), releaseCommand())
}

// testCommand returns the command test, which runs Slipway's tests and installs what they lack.
func testCommand() *commands.Command {
	c := commands.New("test", "Install what the tests lack and run all of them, with one summary at the end")
	c.Example = `go tool mage test
go tool mage test --only=TestSmoke
go tool mage test --short  # without the virtual board
go tool mage test --race`
	only := c.Text("only=PATTERN", "", "only tests whose name matches this pattern")
	short := c.Switch("short", "leave out what takes minutes")
	race := c.Switch("race", "all of them under the race detector; without this option, most of them if CI is set, otherwise none")
	shuffle := c.Switch("shuffle", "in another order each time, with nothing taken from Go's test cache; always if CI is set")
	c.RunSignalled(func(ctx context.Context, _ []string) error {
		options := source.TestOptions{Run: *only, Short: *short}
		inCI := os.Getenv("CI") != ""
		switch {
		case *race:
			options.Race = source.RaceAll
		case inCI:
			options.Race = source.RaceMost
		}
		if *shuffle || inCI {
			options.Shuffle = 1 + rand.Int64N(1e9)
		}
		return source.Tests(ctx, os.Stdout, options)
	})
	return c
}

// checkCommand returns the command check, which checks Slipway's own source by its rules.
func checkCommand() *commands.Command {
	c := commands.New("check", "Look at the code and rewrite nothing")
	c.Long = `The rules are format, vet, staticcheck, tidy modules, dead code, licences of dependencies, and
the direction of imports.`
	c.RunSignalled(func(ctx context.Context, _ []string) error { return source.Check(ctx, os.Stdout) })
	return c
}

func fmtCommand() *commands.Command {
	c := commands.New("fmt", "Format the code and tidy the modules")
	c.RunSignalled(func(ctx context.Context, _ []string) error { return source.Format(ctx) })
	return c
}

func fuzzCommand() *commands.Command {
	c := commands.New("fuzz", "Run every fuzz test for a while, and fail with the first input that breaks one")
	c.Example = `go tool mage fuzz --each=5m`
	each := c.Span("each", time.Minute, "how long each of them runs; 60s if not given")
	c.RunSignalled(func(ctx context.Context, _ []string) error { return source.Fuzz(ctx, os.Stdout, *each) })
	return c
}

// benchCommand returns the command bench, which compares Slipway's speed with that of other tools.
func benchCommand() *commands.Command {
	c := commands.New("bench AREA", "Measure Slipway beside the tools that it replaces, in one run")
	c.OneOf(bench.Areas())
	c.Long = `The last line holds the ratios as name=value.

flash, hook, hub, layers and place need root. flash takes half an hour and an idle machine.
--rounds, --only and --mib make a part of it.

store needs oras. It pushes 1 GiB and pulls it, and counts the bytes.`
	c.Example = `go tool mage bench flash
go tool mage bench flash --rounds=1 --mib=256 --only=raw
go tool mage bench deploy --only="plain (ours|scp)"
git worktree add ../earlier HEAD~20
go tool mage bench hook --before=../earlier`
	rounds := c.Number("rounds", 0, 1, "how often each is measured; 5 if not given, 30 for hook, 200 jobs for hub, 3 for layers, place and store")
	only := c.Text("only=PATTERN", "", "only what matches this pattern")
	mib := c.Number("mib", 0, 1, "the size of the image of flash and place, the file of deploy or the artifact of store")
	before := c.Text("before=FOLDER", "", "measure an earlier commit too, of which FOLDER is a checkout: deploy, flash, hook, layers")
	c.RunSignalled(func(ctx context.Context, words []string) error {
		return bench.Run(ctx, os.Stdout, words[0], bench.Options{Rounds: *rounds, Only: *only, MiB: *mib, Before: *before})
	})
	return c
}

// soakCommand returns the command soak, which breaks a command at random and runs it again.
func soakCommand() *commands.Command {
	c := commands.New("soak AREA", "Break a command at random moments and run it again: the end must always be the same")
	c.OneOf(soak.Areas())
	c.Long = `build needs SLIPWAY_BITBAKE, which names a git clone of bitbake, and a user who is not root.

hook, which needs root, starts containers that get a board's files. None may fail, and nothing
may be left of them.

hub, which needs root, does a rollout over simulated boards of many stations, each in a network
namespace. It kills hubs, stations and jobs, and cuts links. Then boards, hubs and audit must agree.
ci/dev/README.md explains its parts.

place has a flashing place in a virtual machine write cards. QEMU plugs them in and out. Some have
faults. The place is killed, and the machine's power is cut once.

update updates a virtual board again and again, and cuts its connection and its power
meanwhile. An update takes minutes there.`
	c.Example = `go tool mage soak layers
go tool mage soak layers --kills=200 --seed=7
go tool mage soak hook
go tool mage soak hub --rounds=3 --seed=7
go tool mage soak hub --part=slow --hubs=1 --stations=2 --each=3
go tool mage soak hub --part=power --hubs=1 --rounds=10
go tool mage soak place --cards=200
go tool mage soak update --kills=30`
	kills := c.Number("kills", 50, 0, "how many; 50 if not given")
	seed := c.Number("seed", rand.Int(), 0, "where the moments come from; one that is printed if not given")
	containers := c.Number("containers", 2000, 1, "how many hook starts one after another; 2000 if not given")
	rounds := c.Number("rounds", 1, 1, "how many rollouts hub does; 1 if not given")
	hubs := c.Number("hubs", 3, 1, "how many hub has; 3 if not given")
	stations := c.Number("stations", 20, 1, "how many hub has; 20 if not given")
	boards := c.Number("each", 50, 1, "boards of each station of hub; 50 if not given")
	part := c.Text("part=PART", "", "what hub does instead of rollouts with faults: "+strings.Join(soak.HubParts, ", "))
	cards := c.Number("cards", 200, 1, "how many a flashing place writes; 200 if not given")
	c.RunSignalled(func(ctx context.Context, words []string) error {
		ofHubs := soak.HubOptions{Seed: uint64(*seed), Hubs: *hubs, Stations: *stations, Boards: *boards, Rounds: *rounds, Part: *part}
		return soak.Run(ctx, os.Stdout, words[0], soak.Options{HubOptions: ofHubs, Kills: *kills, Containers: *containers, Cards: *cards})
	})
	return c
}

// releaseCommand returns the command release, which makes the files of a release of Slipway.
func releaseCommand() *commands.Command {
	c := commands.New("release", "Make the files of a release from HEAD: programs, packages, and a signed list")
	c.Long = `The files are in build/release/VERSION. The same commit, version and release of Go give the same
bytes on each machine. Files that are not committed are refused.

The version is that of HEAD's tag. Without a tag it is the one that the go command gives to a
snapshot.

The signature is of OpenSSH's form for the namespace "file", by Ed25519, ECDSA or RSA. The key
has no passphrase, or ssh-agent has it: then --key names the public half.`
	c.Example = `go tool mage release --key=~/.ssh/release
go tool mage release --key=release.pub  # by ssh-agent
go tool mage release --unsigned  # to try it`
	key := c.Text("key=FILE", "", "the key that signs (or "+release.KeyVariable+")")
	unsigned := c.Switch("unsigned", "sign nothing; nobody can verify the result")
	c.RunSignalled(func(ctx context.Context, words []string) error {
		return release.Make(ctx, os.Stdout, release.Options{
			Root: ".", Out: "build/release", Key: *key, Unsigned: *unsigned,
		})
	})
	return c
}
