package commands

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// shells are scripts that complete the line "$1" in a shell, by what "slipway completion" printed.
// zsh completes at a terminal alone: zpty is one.
var shells = []struct{ name, argv, script string }{
	{"bash", "bash --norc", `source /usr/share/bash-completion/bash_completion || exit
source <(slipway completion bash)
COMP_LINE=$1 COMP_POINT=${#1} COMP_TYPE=9
read -ra COMP_WORDS <<<"$1"
[[ $1 == *" " ]] && COMP_WORDS+=("")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
__start_slipway
printf '%s\n' "${COMPREPLY[@]}"
`},
	{"fish", "fish --no-config", `slipway completion fish | source
complete -C "$argv[1]"
`},
	{"zsh", "zsh -f", `slipway completion zsh >_slipway
zmodload zsh/zpty
zpty shell 'TERM=dumb zsh -f -i'
zpty -w shell 'fpath=($PWD $fpath); autoload -Uz compinit; compinit -u -D; unsetopt zle_bracketed_paste list_beep; bindkey "^I" list-choices; PS1="READ""Y "'
zpty -r shell said '*READY*'
zpty -w -n shell "$1"$'\t'
zpty -w shell $'\C-u''echo DO""NE'
zpty -r shell said '*DONE*'
print -r -- $said
zpty -d shell
`},
}

// Each shell offers what may follow on a line.
func checkCompletionInShells(t *testing.T, program string) {
	bin, home := t.TempDir(), t.TempDir()
	if err := os.Link(program, filepath.Join(bin, "slipway")); err != nil {
		t.Fatal(err)
	}
	env := []string{"HOME=" + home, "PATH=" + bin + ":" + os.Getenv("PATH"), "TERM=dumb", "LC_ALL=C.UTF-8"}
	for _, shell := range shells {
		t.Run(shell.name, func(t *testing.T) {
			if _, err := exec.LookPath(shell.name); err != nil {
				t.Skipf("%s is missing: apt-get install %[1]s bash-completion", shell.name)
			}
			script := filepath.Join(t.TempDir(), "script")
			if err := os.WriteFile(script, []byte(shell.script), 0o644); err != nil {
				t.Fatal(err)
			}
			for line, want := range map[string]string{
				"slipway fl":                         "flash fleet",
				"slipway flash vi":                   "virt virt-arm64",
				"slipway deploy fi":                  "files",
				"slipway flash virt d.img --ho":      "--holes",
				"slipway smoke virt virt --suite=co": "containers",
				"slipway completion ":                "bash zsh fish",
			} {
				argv := append(strings.Fields(shell.argv), script, line)
				status, out := exitOf(t, t.TempDir(), env, argv...)
				words := strings.FieldsFunc(out, func(r rune) bool { return strings.ContainsRune(" \t\r\n=", r) })
				for _, w := range strings.Fields(want) {
					if !slices.Contains(words, w) {
						t.Errorf("%s completes %q: status %d, %q; want %s", shell.name, line, status, out, want)
						break
					}
				}
				if slices.Contains(words, "layers") {
					t.Errorf("%s offers everything for %q: %q", shell.name, line, out)
				}
			}
		})
	}
}
