package job

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"slipway/images"
	"slipway/layers/plaintext"
)

// Line is one program of a job: the very line that a person would type in the board's working folder.
type Line struct {
	Step int      // index of its step, -1 for the pull that goes before them
	Argv []string // after Slipway's name; with Own, a whole program of the station
	Own  bool
}

// Pull returns the line that pulls the artifact of an order, or false without one.
func Pull(o Order) (Line, bool) {
	argv := []string{"pull", o.Job.Artifact, "--into=" + o.How.Artifact, "--json"}
	return Line{Step: -1, Argv: argv}, o.Job.Artifact != ""
}

// Lines returns the lines of all steps. It reads the artifact, which must have been pulled. All that
// a hub says stands in words of its own, never in a text that a shell reads.
func Lines(o Order) (all []Line, err error) {
	for i, s := range o.Job.Steps {
		lines, err := o.linesOf(s)
		if err != nil {
			return nil, fmt.Errorf("step %d, %s: %w", i+1, s.Do, err)
		}
		for _, l := range lines {
			l.Step = i
			if o.How.Boards != "" && !l.Own {
				l.Argv = append(l.Argv, "--boards="+o.How.Boards)
			}
			all = append(all, l)
		}
	}
	return all, nil
}

func (o Order) linesOf(s Step) ([]Line, error) {
	start, stop := slipwayLine("virt", "start", o.Job.Board), slipwayLine("virt", "stop", o.Job.Board)
	switch {
	case s.Do == Build:
		return o.buildLines(s), nil
	case s.Do == Flash:
		return o.flashLines(s)
	case s.Do == Place:
		return o.placeLine(s)
	case s.Do == Boot && o.How.Virtual: // one that is on, perhaps by this job's last attempt, starts again
		return []Line{stop, start}, nil
	case s.Do == Boot && len(o.How.Power) > 0:
		return []Line{{Argv: o.How.Power, Own: true}}, nil
	case s.Do == Boot:
		return nil, fmt.Errorf("the station has no power command for %s", o.Job.Name)
	}
	return o.boardLine(s)
}

func slipwayLine(words ...string) Line { return Line{Argv: words} }

// flashLines switches a virtual board off, whose disk would be in use, or brings a Jetson into
// recovery mode, before the flash.
func (o Order) flashLines(s Step) (all []Line, err error) {
	device, token := o.How.Device, s.Token
	if o.How.Virtual {
		device = cmp.Or(device, filepath.Join(o.buildDir(), "machine", "disk.img"))
		token = device // nothing but this job's board has it
		all = append(all, slipwayLine("virt", "stop", o.Job.Board))
	}
	if len(o.How.Recovery) > 0 {
		all = append(all, Line{Argv: o.How.Recovery, Own: true})
	}
	switch {
	case device == "":
		return nil, fmt.Errorf("the station has no device for %s", o.Job.Name)
	case token == "":
		return nil, fmt.Errorf("nobody confirmed that %s is erased", device)
	}
	return append(all, slipwayLine("flash", o.Job.Board, device, "--yes="+token, "--json")), nil
}

// placeLine returns the line of a place. It prints no JSON, so that the job's log is for people.
func (o Order) placeLine(s Step) ([]Line, error) {
	if o.How.Place == "" {
		return nil, fmt.Errorf("the station has no place %s", o.Job.Name)
	}
	line := slipwayLine("place", o.Job.Board, o.How.Place)
	if s.Count > 0 {
		line.Argv = append(line.Argv, fmt.Sprintf("--count=%d", s.Count))
	}
	return []Line{line}, nil
}

// Builds is the place of builders' artifacts.
const Builds = "hub:builds"

// buildLines builds a board, and pushes its artifact.
func (o Order) buildLines(s Step) []Line {
	build := slipwayLine("build", o.Job.Board, "--json")
	if s.Targets != "" {
		build.Argv = append(build.Argv, "--target="+s.Targets)
	}
	return []Line{build, slipwayLine("push", o.Job.Board, Builds, "--json")}
}

// boardLine returns the line of a step on a running board.
func (o Order) boardLine(s Step) ([]Line, error) {
	argv := []string{"fleet", string(s.Do), o.Job.Board, inventoryName}
	if o.How.Inventory == "" {
		return nil, fmt.Errorf("the station does not reach %s by SSH", o.Job.Name)
	}
	if s.Do == Update {
		bundle, err := o.findBundle(s.Bundle)
		if err != nil {
			return nil, err
		}
		argv = append(argv, bundle, "--yes")
	}
	if s.Downgrade {
		argv = append(argv, "--downgrade")
	}
	return []Line{slipwayLine(append(argv, fmt.Sprintf("--board-limit=%s", o.Job.limit()), "--json")...)}, nil
}

// findBundle returns the path of the artifact's file with a digest.
func (o Order) findBundle(digest string) (string, error) {
	if o.How.Artifact == "" {
		return "", errors.New("the job has no artifact with the bundle")
	}
	a, err := images.ReadArtifact(o.How.Artifact)
	if err != nil {
		return "", err
	}
	i := slices.IndexFunc(a.Files, func(f images.File) bool { return "sha256:"+f.SHA256 == digest })
	if i < 0 {
		return "", fmt.Errorf("the artifact has no file %s", digest)
	}
	return filepath.Join(o.How.Artifact, a.Files[i].Name), nil
}

// buildDir is the folder of the board's artifact in its working folder. The same one for all steps
// and jobs, as Slipway finds the keys that a flash recorded by its path.
func (o Order) buildDir() string { return filepath.Join("build", o.Job.Board) }

// longestLimit limits limitMs, which comes from outside.
const longestLimit = 30 * 24 * time.Hour

func (j Job) limit() time.Duration {
	return time.Duration(min(j.LimitMS, longestLimit.Milliseconds())) * time.Millisecond
}

// typed returns the line as a person types it on the station. Of a program of station.yml it has the
// name alone, as its arguments can be passwords.
func (l Line) typed(work string) string {
	words := append([]string{"slipway"}, l.Argv...)
	if l.Own {
		words = l.Argv[:1]
	}
	text := "cd " + plaintext.Quote(work) + " &&"
	for _, word := range words {
		text += " " + plaintext.Quote(word)
	}
	return plaintext.OneLine(text)
}
