package images

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/google/renameio/v2"
	slsa "github.com/in-toto/attestation/go/predicates/provenance/v1"
	intoto "github.com/in-toto/attestation/go/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"slipway/layers/git"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
)

// The kinds of files that say what an image is made of.
const (
	SBOM       = "sbom"       // a bill of material, as package sbom reads it
	CVEs       = "cves"       // the findings of the Yocto CVE check
	Provenance = "provenance" // an in-toto statement with SLSA's provenance
)

const (
	provenanceName = "provenance.json"
	slsaType       = "https://slsa.dev/provenance/v1"
	buildType      = "urn:slipway:build:1"
)

// Publish writes the provenance file and artifact.json, with the source's commit and the versions
// of the build's tools. It removes signatures of the earlier artifact.json.
func (a *Artifact) Publish(ctx context.Context, spec Spec, tools map[string]string) error {
	for _, ending := range SignatureEndings {
		if err := localfile.Remove(ArtifactPath(a.dir) + ending); err != nil {
			return err
		}
	}
	a.Source, a.Tools = spec.Source(ctx), tools
	a.Files = slices.DeleteFunc(a.Files, func(f File) bool { return f.Kind == Provenance })
	statement, err := a.statement()
	if err != nil {
		return fmt.Errorf("describe the build: %w", err)
	}
	if err := renameio.WriteFile(filepath.Join(a.dir, provenanceName), statement, 0o644); err != nil {
		return err
	}
	f, err := a.Describe(ctx, Provenance, provenanceName)
	if err != nil {
		return err
	}
	a.Files = append(a.Files, f)
	return a.Save(a.dir)
}

// SignatureEndings are the file name endings of signatures by ssh-keygen and gpg.
var SignatureEndings = []string{".sig", ".asc"}

// Source returns the git commit of the user's folder of boards or project file, nil if that has
// none. It is nil for Slipway's own boards: for these the artifact names the Slipway that built it.
func (s Spec) Source(ctx context.Context) *git.FolderCommit {
	if s.project != "" {
		file, _ := firstProjectFile(s.project)
		return git.CommitOfFolder(ctx, filepath.Dir(file))
	}
	if p := s.place(); p.own {
		return git.CommitOfFolder(ctx, filepath.Dir(filepath.Dir(p.folder)))
	}
	return nil
}

// statement returns an in-toto statement, as JSON, of how the artifact's files were built.
func (a *Artifact) statement() ([]byte, error) {
	s := &intoto.Statement{Type: intoto.StatementTypeUri, PredicateType: slsaType}
	for _, f := range a.Files {
		s.Subject = append(s.Subject, &intoto.ResourceDescriptor{Name: f.Name, Digest: map[string]string{"sha256": f.SHA256}})
	}
	external, err := structpb.NewStruct(map[string]any{"board": a.Board, "project": a.Project})
	if err != nil {
		return nil, err
	}
	internal, err := structpb.NewStruct(map[string]any{"key": a.Key, "tools": anyMap(a.Tools)})
	if err != nil {
		return nil, err
	}
	who, run := builder()
	p := &slsa.Provenance{
		BuildDefinition: &slsa.BuildDefinition{
			BuildType: buildType, ExternalParameters: external, InternalParameters: internal, ResolvedDependencies: a.dependencies(),
		},
		RunDetails: &slsa.RunDetails{
			Builder:  &slsa.Builder{Id: who, Version: map[string]string{"slipway": a.Slipway.String()}},
			Metadata: &slsa.BuildMetadata{InvocationId: run, FinishedOn: timestamppb.New(a.Built.Truncate(time.Second))},
		},
	}
	if err := p.Validate(); err != nil {
		return nil, err
	}
	if s.Predicate, err = toStruct(p); err != nil {
		return nil, err
	}
	if err := s.Validate(); err != nil {
		return nil, err
	}
	text, err := protojson.Marshal(s)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer // protojson's own blanks differ from one build of Slipway to the next
	if err := json.Indent(&b, text, "", "  "); err != nil {
		return nil, err
	}
	b.WriteByte('\n')
	return b.Bytes(), nil
}

// anyMap copies a map of texts into one of any values, which structpb needs.
func anyMap(texts map[string]string) map[string]any {
	all := map[string]any{}
	for name, text := range texts {
		all[name] = text
	}
	return all
}

// dependencies returns the repositories that the build used and that have a commit.
func (a *Artifact) dependencies() (all []*intoto.ResourceDescriptor) {
	add := func(name, url, commit string, edited bool) {
		if commit == "" {
			return
		}
		d := &intoto.ResourceDescriptor{Name: name, Digest: map[string]string{"gitCommit": commit}}
		if url != "" {
			d.Uri = "git+" + url + "@" + commit
		}
		if edited {
			d.Annotations, _ = structpb.NewStruct(map[string]any{"edited": true}) // a bool always fits
		}
		all = append(all, d)
	}
	if a.Source != nil {
		add("source", a.Source.URL, a.Source.Commit, a.Source.Edited)
	}
	for _, l := range a.Layers {
		add(l.Repo, l.URL, l.Commit, l.Edited || l.Local != "")
	}
	return all
}

// builder returns who built, and the URL of the CI run, from the variables of GitHub, GitLab or
// Jenkins. Outside of CI it returns a constant and "".
func builder() (id, run string) {
	if server, repo, number := os.Getenv("GITHUB_SERVER_URL"), os.Getenv("GITHUB_REPOSITORY"), os.Getenv("GITHUB_RUN_ID"); server != "" && repo != "" {
		return server + "/" + repo, server + "/" + repo + "/actions/runs/" + number
	}
	if project := os.Getenv("CI_PROJECT_URL"); project != "" {
		return project, os.Getenv("CI_JOB_URL")
	}
	if build := os.Getenv("BUILD_URL"); build != "" {
		return os.Getenv("JENKINS_URL"), build
	}
	return "urn:slipway:builder:local", ""
}

// toStruct returns a provenance as the struct that a statement has as its predicate.
func toStruct(p *slsa.Provenance) (*structpb.Struct, error) {
	text, err := protojson.Marshal(p)
	if err != nil {
		return nil, err
	}
	s := &structpb.Struct{}
	return s, protojson.Unmarshal(text, s)
}

// Statement is the content of a provenance file.
type Statement struct {
	Subjects map[string]string `json:"-"` // SHA-256 by file
	Builder  string            `json:"builder"`
	Run      string            `json:"run,omitempty"`
	Board    string            `json:"board"`
	Key      string            `json:"key"`
}

// ReadStatement reads the artifact's provenance file, and returns an error unless it has the
// artifact's board and key and exactly its files and digests.
func (a Artifact) ReadStatement() (Statement, error) {
	f, err := a.File(Provenance)
	if err != nil {
		return Statement{}, err
	}
	data, err := localfile.Read(a.Path(f), maxDescriptionBytes)
	if err != nil {
		return Statement{}, err
	}
	s, err := parseStatement(data)
	if err == nil {
		err = a.checkStatement(s)
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", a.Path(f), err)
	}
	return s, err
}

// parseStatement parses an in-toto statement with SLSA's provenance, and checks its form.
func parseStatement(data []byte) (Statement, error) {
	var s intoto.Statement
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(data, &s); err != nil {
		return Statement{}, errors.New("it is no in-toto statement")
	}
	if err := s.Validate(); err != nil {
		return Statement{}, err
	}
	if s.PredicateType != slsaType {
		return Statement{}, fmt.Errorf("its predicate is %q; want %s", s.PredicateType, slsaType)
	}
	text, err := protojson.Marshal(s.Predicate)
	if err != nil {
		return Statement{}, err
	}
	var p slsa.Provenance
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(text, &p); err != nil {
		return Statement{}, errors.New("its predicate is no provenance of SLSA")
	}
	if err := p.Validate(); err != nil {
		return Statement{}, err
	}
	out := Statement{
		Subjects: map[string]string{}, Builder: p.RunDetails.Builder.Id, Run: p.RunDetails.GetMetadata().GetInvocationId(),
		Board: p.BuildDefinition.ExternalParameters.GetFields()["board"].GetStringValue(),
		Key:   p.BuildDefinition.InternalParameters.GetFields()["key"].GetStringValue(),
	}
	for _, subject := range s.Subject {
		out.Subjects[subject.Name] = subject.Digest["sha256"]
	}
	return out, nil
}

// checkStatement returns an error unless a provenance statement has the artifact's board and key,
// and names exactly its other files with their digests.
func (a Artifact) checkStatement(s Statement) error {
	if s.Board != a.Board || s.Key != a.Key {
		return fmt.Errorf("it is of another build: of board %s with the key %.12s, and the artifact is of %s with %.12s", s.Board, s.Key, a.Board, a.Key)
	}
	n := 0
	for _, f := range a.Files {
		if f.Kind == Provenance {
			continue
		}
		if n++; s.Subjects[f.Name] != f.SHA256 {
			return fmt.Errorf("it is of another build: it does not name %s with its digest", f.Name)
		}
	}
	if n != len(s.Subjects) {
		return fmt.Errorf("it is of another build: it names %d files, and the artifact has %d", len(s.Subjects), n)
	}
	return nil
}

// Program identifies the Slipway that made something.
type Program struct {
	Version  string `json:"version"`
	Commit   string `json:"commit"`
	Modified bool   `json:"modified,omitempty"` // its source differed from the commit
}

// String returns the version and commit for a person to read.
func (p Program) String() string {
	text := plaintext.Either(p.Version == unknown, "development build", p.Version) + ", commit " + p.Commit
	if p.Modified {
		text += ", modified"
	}
	return text
}

// Describe is the git command whose output SetDescribed takes. It prints the full commit.
var Describe = []string{"git", "describe", "--always", "--dirty", "--long", "--abbrev=40"}

// unknown is the version or commit of a program that was compiled without that information.
const unknown = "unknown"

// described is the output of Describe from when this program was compiled. The linker's -X sets it,
// since the go command records no commit in what Mage compiles.
var described string

// SetDescribed sets the output of Describe for this program, for a caller that knows it.
func SetDescribed(text string) { described = strings.TrimSpace(text) }

// ThisProgram returns the version and commit of the running Slipway.
func ThisProgram() Program {
	if p, ok := parseDescribed(described); ok {
		return p
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		return recordedProgram(info)
	}
	return Program{Version: unknown, Commit: unknown}
}

// parseDescribed parses the output of Describe: v1.2-3-gCOMMIT-dirty, or COMMIT if no tag is known.
// It returns false if COMMIT is no full hash.
func parseDescribed(text string) (Program, bool) {
	text, modified := strings.CutSuffix(text, "-dirty")
	p := Program{Version: unknown, Commit: text, Modified: modified}
	if i := strings.LastIndex(text, "-g"); i >= 0 {
		p.Version, p.Commit = strings.TrimSuffix(text[:i], "-0"), text[i+2:]
	}
	id, err := hex.DecodeString(p.Commit)
	return p, err == nil && (len(id) == 20 || len(id) == 32)
}

// pseudoVersion matches the end of a version that the go command makes for a commit without a tag.
var pseudoVersion = plaintext.Regexp(`[.-]\d{14}-[0-9a-f]{12}$`)

// recordedProgram returns the version and commit that the go command recorded in this program. It
// treats a pseudo-version and (devel) as unknown.
func recordedProgram(info *debug.BuildInfo) Program {
	p := Program{Version: unknown, Commit: unknown}
	if v := strings.TrimSuffix(info.Main.Version, "+dirty"); v != "" && v != "(devel)" && !pseudoVersion().MatchString(v) {
		p.Version = v
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			p.Commit = s.Value
		case "vcs.modified":
			p.Modified = s.Value == "true"
		}
	}
	return p
}
