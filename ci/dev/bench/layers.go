package bench

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"slipway/images/builder"
	"slipway/layers/kastest"
	"slipway/layers/plaintext"
)

// layers measures the checkout of a project's layers by Slipway and by kas, from a git server
// behind a slow line. The folder after "prepare" is emptied first.
var layers = area{
	rounds:   3,
	packages: append(kastest.TestingPackages(), "git", "e2fsprogs", "mount"),
	root:     true, mounts: true,
	delay: 20 * time.Millisecond,
	begin: findKas,
	about: "8 git repositories with 2000 files and 2000 commits each, from git's daemon behind 20ms in either direction; kas {version}",
	variants: []variant{
		{name: "slipway, cold", command: layersOurs, dir: "{top}", prepare: "prepare build"},
		{name: "slipway, second board", command: layersOurs, dir: "{top}", prepare: "prepare build/{board}"},
		{name: "slipway, warm", command: layersOurs, dir: "{top}"},
		{name: "kas, only its start", command: "{env} {kas} --version", dir: "{top}"},
		kasVariant("kas, cold", "kas", "", true),
		kasVariant("kas, cold, depth 1", "kas-shallow", "KAS_CLONE_DEPTH=1", true),
		kasVariant("kas, second board", "kas-second", "KAS_REPO_REF_DIR={top}/kas-refs", true),
		kasVariant("kas, warm", "kas", "", false),
	},
	ratios: []ratio{
		{name: "kas_over_ours_cold_20ms", over: "kas, cold", under: "slipway, cold"},
		{name: "kas_shallow_over_ours_cold_20ms", over: "kas, cold, depth 1", under: "slipway, cold"},
		{name: "kas_over_kas_shallow", over: "kas, cold", under: "kas, cold, depth 1"},
		{name: "kas_over_ours_second_board", over: "kas, second board", under: "slipway, second board"},
		{name: "kas_over_ours_warm", over: "kas, warm", under: "slipway, warm"},
	},
}

const layersOurs = "{program} layers checkout {board}"

// kasVariant returns the variant of a checkout by kas in a folder (emptied first, if cold is set),
// with variables, words NAME=VALUE.
func kasVariant(name, folder, variables string, cold bool) variant {
	dir := "{top}/" + folder
	v := variant{name: name, command: "{env} KAS_WORK_DIR=" + dir + " KAS_BUILD_DIR=" + dir + "/build " + variables + " {kas} checkout {file}", dir: dir}
	if cold {
		v.prepare = "prepare " + folder
	}
	return v
}

// findKas finds kas, sets s.words for the board's project, and replaces {env} in the variants'
// commands by env with kas's variables, and {kas} by the command that runs kas.
func findKas(ctx context.Context, s *session) error {
	kas, err := kastest.Find(ctx, kastest.Testing)
	if err != nil {
		return err
	}
	spec, err := builder.WithLayers()
	if err != nil {
		return err
	}
	top := filepath.Join(s.dir, "top")
	s.words["board"], s.words["top"], s.words["version"] = spec.Board, top, kas.Version
	s.words["file"] = filepath.Join(top, "images/boards", spec.Board, "kas.yml")
	c := kas.Command(top)
	program := 1
	for c.Argv[program] == "-u" {
		program += 2
	}
	words := strings.NewReplacer("{env}", joinWords(append(c.Argv[:program:program], c.Env...)), "{kas}", joinWords(c.Argv[program:]))
	s.variants = slices.Clone(s.variants)
	for i := range s.variants {
		s.variants[i].command = words.Replace(s.variants[i].command)
	}
	return nil
}

// joinWords returns the words, each quoted and followed by a space.
func joinWords(words []string) string {
	var b strings.Builder
	for _, word := range words {
		b.WriteString(plaintext.Quote(word) + " ")
	}
	return b.String()
}
