package trends

// The tests write the reports and artifacts of pipelines, with changes at known places.

import (
	"crypto/sha1"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"slipway/ci/report"
	"slipway/images"
	"slipway/layers/git"
)

// pipelines is how many pipelines of main are written. Each has a folder for each of the
// three boards.
const pipelines = 120

// repositoryURL is the repository of all commits.
const repositoryURL = "https://github.com/example/boards.git"

// plantedChange is a change at a pipeline.
type plantedChange struct {
	Kind, Board, Name string
	At                int // the first pipeline with it
}

// allPlanted are the changes. There are no others.
var allPlanted = []plantedChange{
	{"regression", "bluefield", "bundle size", 60},
	{"regression", "bluefield", "throughput", 105},
	{"regression", "orin", "build time", 80},
	{"regression", "orin", "cache hits", 100},
	{"regression", "orin", "temperature", 90},
	{"regression", "virt", "boot time", 110},
	{"regression", "virt", "sshd is running", 115},
	{"change", "virt", "processes", 70},
	{"improvement", "bluefield", "restart time", 60},
	{"improvement", "virt", "disk size", 40},
	{"recovered", "bluefield", "restart time", 30},
}

// commitOf is what a pipeline was of.
func commitOf(pipeline int) string {
	return fmt.Sprintf("%x", sha1.Sum(fmt.Append(nil, "pipeline ", pipeline)))
}

// pipelineBegan is when a pipeline began.
func pipelineBegan(pipeline int) time.Time {
	return time.Date(2026, 3, 1, 6, 0, 0, 0, time.UTC).Add(time.Duration(pipeline) * 11 * time.Hour)
}

// began returns when the pipeline began. One of another branch follows that of main.
func (w *writer) began() time.Time {
	if w.branch == "main" {
		return pipelineBegan(w.at)
	}
	return pipelineBegan(w.at).Add(time.Hour)
}

// writePipelines writes the pipelines below a folder. Others, of a branch with other values, are among
// them.
func writePipelines(dir string) error {
	w := writer{dir: dir, r: rand.New(rand.NewPCG(1, 2026))}
	for i := range pipelines {
		w.at, w.branch, w.worse = i, "main", 1
		w.writePipeline(fmt.Sprintf("%04d", i))
		if i%10 == 5 {
			w.branch, w.worse = "next", 3
			w.writePipeline(fmt.Sprintf("%04d-next", i))
		}
	}
	return w.err
}

type writer struct {
	dir    string
	r      *rand.Rand
	at     int
	branch string
	worse  float64
	err    error
}

// scatter returns a value with noise.
func (w *writer) scatter(v, spread float64) float64 {
	return w.worse * v * (1 + spread*w.r.NormFloat64())
}

// from returns after from a pipeline on, and before until then.
func (w *writer) from(pipeline int, before, after float64) float64 {
	if w.at >= pipeline {
		return after
	}
	return before
}

func (w *writer) writePipeline(name string) {
	w.writeOrin(filepath.Join(w.dir, name, "orin"))
	w.writeBlueField(filepath.Join(w.dir, name, "bluefield"))
	w.writeVirt(filepath.Join(w.dir, name, "virt"))
}

func (w *writer) writeOrin(dir string) {
	took := w.scatter(w.from(80, 1800, 2040), 0.02)
	if w.r.Float64() < 0.06 {
		took *= 2.5 // a cold cache
	}
	hits := int64(w.scatter(w.from(100, 4600, 3500), 0.01) / w.worse)
	a := w.artifact("orin", "arm64", images.Cost{BuildMS: int64(1000 * took), CacheHits: hits, CacheMisses: 5000 - hits},
		images.File{Kind: images.Tegraflash, Name: "orin.tegraflash.tar.zst", SizeBytes: int64(w.scatter(900<<20, 0.002))})
	r := w.report(a, "1420000000001")
	r.Suites = []report.SuiteResult{{Name: "sensors", ElapsedMS: 4000, Checks: []report.CheckResult{
		{Name: "not too hot", Kind: "sensor", Status: report.Passed, Metrics: []report.Metric{
			{Name: "temperature", Unit: "°C", Value: w.scatter(w.from(90, 52, 61), 0.02), Max: limit(95)},
			{Name: "current", Unit: "A", Value: w.scatter(1.8, 0.1), Max: limit(4)},
		}},
	}}}
	w.write(dir, a, r)
}

func (w *writer) writeBlueField(dir string) {
	a := w.artifact("bluefield", "arm64", images.Cost{BuildMS: int64(1000 * w.scatter(2400, 0.05)), CacheHits: 3000, CacheMisses: 100},
		images.File{Kind: images.Bundle, Name: "update.raucb", SizeBytes: int64(w.scatter(w.from(60, 300<<20, 327<<20), 0.001))})
	r := w.report(a, "MT2000000001")
	restart := report.CheckResult{Name: "it restarts", Kind: "reboot", Status: report.Passed, ElapsedMS: int64(1000 * w.scatter(w.from(30, 40, w.from(60, 54, 40)), 0.03))}
	link := report.CheckResult{Name: "link is up", Kind: "interface", Status: report.Passed}
	if w.r.Float64() < 0.08 || w.at == 50 {
		link.Status, link.Saw, link.Want = report.Failed, "down", "up"
	}
	r.Suites = []report.SuiteResult{{Name: "dpu-flow", ElapsedMS: 90000, Checks: []report.CheckResult{
		restart, link,
		{Name: "forwards", Kind: "traffic", Status: report.Passed, Metrics: []report.Metric{
			{Name: "throughput", Unit: "Gbit/s", Value: w.scatter(w.from(105, 96, 84), 0.015), Min: limit(50)},
		}},
	}}}
	w.write(dir, a, r)
}

func (w *writer) writeVirt(dir string) {
	a := w.artifact("virt", "amd64", images.Cost{BuildMS: int64(1000 * w.scatter(95, 0.04))},
		images.File{Kind: images.DiskImage, Name: "disk.img", SizeBytes: int64(w.from(40, 2000, 1600)) << 20})
	r := w.report(a, "")
	r.Boot = report.Boot{ElapsedMS: int64(1000 * w.scatter(w.from(110, 6.2, 7.8), 0.03)), Accel: "kvm"}
	r.Stages = []report.Stage{{Name: "build", Status: report.Passed, ElapsedMS: a.Cost.BuildMS}, {Name: "boot", Status: report.Passed, ElapsedMS: 9000}}
	sshd := report.CheckResult{Name: "sshd is running", Kind: "service", Status: report.Passed}
	if w.at >= 115 {
		sshd.Status, sshd.Saw, sshd.Want = report.Failed, "failed", "running"
	}
	r.Suites = []report.SuiteResult{{Name: "base", ElapsedMS: 3000, Checks: []report.CheckResult{
		sshd,
		{Name: "few processes", Kind: "command", Status: report.Passed, Metrics: []report.Metric{{Name: "processes", Value: float64(int(w.scatter(w.from(70, 120, 150), 0.02)))}}},
	}}}
	w.write(dir, a, r)
}

func limit(v float64) *float64 { return &v }

func (w *writer) artifact(board, arch string, cost images.Cost, files ...images.File) images.Artifact {
	return images.Artifact{
		Board: board, Arch: arch, Key: fmt.Sprintf("%x", sha1.Sum(fmt.Append(nil, board, w.at, w.branch))), Built: w.began().Add(10 * time.Minute),
		Files: files, Cost: &cost, Source: &git.FolderCommit{URL: repositoryURL, Commit: commitOf(w.at), Branch: w.branch},
	}
}

func (w *writer) report(a images.Artifact, serial string) report.Report {
	return report.Report{
		Version: 1, Board: a.Board, Started: w.began().Add(30 * time.Minute), ElapsedMS: 60000,
		Identity: report.Identity{Serial: serial, ImageKey: a.Key}, Source: a.Source,
	}
}

func (w *writer) write(dir string, a images.Artifact, r report.Report) {
	data, err := json.Marshal(r.Tidy())
	w.err = errors.Join(w.err, err, os.MkdirAll(dir, 0o755), a.Save(dir), os.WriteFile(filepath.Join(dir, report.ReportJSON), data, 0o644))
}
