package ci

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"

	"github.com/google/renameio/v2"

	"slipway/ci/report"
	"slipway/ci/suite"
	"slipway/images"
	"slipway/images/starter"
	"slipway/layers/host"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
)

// ProjectOptions says how files of a project are written and shown.
type ProjectOptions struct {
	DryRun bool
	JSON   bool
}

// InitProject writes a new project's files into a folder, and prints the next steps. In a project
// it only adds pipelines. It refuses a folder in a clone of Slipway.
func InitProject(ctx context.Context, w io.Writer, folder string, req starter.Request, opt ProjectOptions) error {
	whole, err := filepath.Abs(folder)
	if err != nil {
		return err
	}
	if images.InClone(whole) {
		return fmt.Errorf("%s: the folder is in a clone of Slipway, which has only Slipway's boards\nnext: init /tmp/lab --like=%s", folder, cmp.Or(req.Like, "virt"))
	}
	req.Folder = folder
	if boards, _ := filepath.Glob(filepath.Join(whole, "boards/*/board.yml")); len(boards) > 0 {
		return addPipelines(ctx, w, folder, boards[0], req, opt)
	}
	if req.Like == "" {
		return fmt.Errorf("%s is no project, and a new one needs --like, the board that its own extends\nnext: repeat the line with --like=virt  # boards lists all", folder)
	}
	plan, err := starter.PlanProject(ctx, req)
	if err != nil {
		return err
	}
	return writePlan(ctx, w, folder, plan, plan.LeaveOut(folder, false), true, opt)
}

// addPipelines writes the missing files of pipelines into a project, of which board is a board.yml.
// It replaces no file, refuses requests for a board or no pipeline, and fails if none is missing.
func addPipelines(ctx context.Context, w io.Writer, folder, board string, req starter.Request, opt ProjectOptions) error {
	if len(req.Pipelines) == 0 || req.Like != "" || req.Name != "" {
		next := fmt.Sprintf("board new %s --like=%s", plaintext.Quote(cmp.Or(req.Name, "lab")), plaintext.Quote(cmp.Or(req.Like, "virt")))
		boards := filepath.Dir(filepath.Dir(board))
		if localfile.Exists(filepath.Join(boards, req.Name, "board.yml")) { // the same line as before
			next = "board check"
		}
		if own, _ := images.OwnFolder(); own != boards { // the current folder is not in that project
			next += " --boards=" + plaintext.Quote(localfile.Shorten(boards))
		}
		return fmt.Errorf("%s: the folder is a project already: it has %s (init --ci=SERVER alone adds a pipeline)\nnext: %s", folder, plaintext.OneLine(board), next)
	}
	plan, err := starter.PlanPipelines(req)
	if err != nil {
		return err
	}
	kept := plan.LeaveOut(folder, true)
	if len(plan.Files) == 0 {
		return fmt.Errorf("%s: all files of the pipeline exist already\nnext: mv %s %[2]s.old  # then repeat the line for a new one", folder, plaintext.Quote(filepath.Join(folder, kept[0].File)))
	}
	return writePlan(ctx, w, folder, plan, kept, true, opt)
}

// AddBoard writes the files of a new board, which extends like, into the current folder's project.
func AddBoard(ctx context.Context, w io.Writer, name, like string, opt ProjectOptions) error {
	folder, err := ownBoards(like)
	if err != nil {
		return err
	}
	plan, err := starter.PlanBoard(ctx, folder, starter.Request{Name: name, Like: like})
	if err != nil {
		return err
	}
	return writePlan(ctx, w, folder, plan, nil, false, opt)
}

// ownBoards returns the project's boards folder, or an error that suggests "init --like" with like.
func ownBoards(like string) (string, error) {
	folder, err := images.OwnFolder()
	if err == nil && folder == "" {
		err = fmt.Errorf("no project: neither this folder nor one above has boards/BOARD/board.yml\nnext: init lab --like=%s", like)
	}
	return localfile.Shorten(folder), report.Because(context.Background(), report.ErrWrong, err)
}

// projectRecord is what writePlan wrote, as JSON for programs.
type projectRecord struct {
	Folder string         `json:"folder"`
	Board  string         `json:"board,omitempty"`
	DryRun bool           `json:"dryRun,omitempty"`
	Files  []string       `json:"files"`
	Edit   []starter.Edit `json:"edit"` // what only the user knows
	Next   []starter.Step `json:"next"`
}

// writePlan checks and (but for a dry run) writes a plan's files. It prints them, the edits in them
// and in edits, and the next steps, which begin with cd if isProject is set.
func writePlan(ctx context.Context, w io.Writer, folder string, plan starter.Plan, edits []starter.Edit, isProject bool, opt ProjectOptions) error {
	err := starter.Check(folder, plan.Files)
	if err == nil && !opt.DryRun {
		err = starter.Write(ctx, folder, plan.Files)
	}
	if err != nil {
		return localfile.Unwritable(folder, fmt.Errorf("write the files of %s: %w", cmp.Or(plan.Board, "the pipeline"), err))
	}
	r := projectRecord{Folder: folder, Board: plan.Board, DryRun: opt.DryRun, Edit: []starter.Edit{}, Next: plan.Next}
	for i, f := range plan.Files {
		plan.Files[i].Path = filepath.Join(folder, f.Path)
		r.Files = append(r.Files, plan.Files[i].Path)
	}
	r.Edit = append(append(r.Edit, starter.FindEdits(plan.Files)...), edits...)
	if opt.JSON {
		return plaintext.WriteJSON(w, r)
	}
	r.show(w, isProject)
	return nil
}

// show prints files, lines to edit and next steps, which begin with cd into folder for isProject.
func (r projectRecord) show(w io.Writer, isProject bool) {
	for _, file := range r.Files {
		fmt.Fprintln(w, plaintext.Either(r.DryRun, "would write", "wrote"), plaintext.OneLine(file))
	}
	showEdits(w, r.Edit)
	fmt.Fprintln(w, "next:")
	program := host.ProgramName()
	if isProject && r.Folder != "." {
		fmt.Fprintln(w, "  cd", plaintext.Quote(r.Folder))
		program = host.ProgramElsewhere()
	}
	for _, step := range r.Next {
		fmt.Fprintf(w, "  %s %s  # %s\n", program, step.Line, step.Why)
	}
}

// showEdits prints the lines that only the user can complete, if there are any.
func showEdits(w io.Writer, edits []starter.Edit) {
	if len(edits) > 0 {
		fmt.Fprintln(w, "only you know:")
	}
	for _, e := range edits {
		fmt.Fprintln(w, " ", plaintext.OneLine(e.String()))
	}
}

// CheckOptions controls how CheckProject shows its findings.
type CheckOptions struct {
	JSON    bool
	Quality string // a file for GitLab's code quality; "" is none
}

// CheckProject loads all boards of the project around the current folder, with suites and layers.
// It returns all faults, or prints what only the user can complete. opt.Quality gets both.
func CheckProject(ctx context.Context, w io.Writer, build images.Options, opt CheckOptions) error {
	folder, err := ownBoards("BOARD")
	if err != nil {
		return err
	}
	boards, err := images.OwnBoards()
	if err != nil {
		return err
	}
	files, err := starter.ReadProject(folder)
	wrong := map[string]error{} // boards may share a file
	if err != nil {
		wrong[err.Error()] = err
	}
	first := images.Spec{}
	for _, board := range boards {
		spec, err := checkBoard(ctx, board, build)
		if spec.Default && first.Default {
			err = cmp.Or(err, fmt.Errorf("%s: default: %s has it too; remove it from one", spec.PlaceOf("default"), first.BoardFile()))
		}
		if err != nil {
			wrong[err.Error()] = err
		}
		if spec.Default {
			first = spec
		}
	}
	all := slices.SortedFunc(maps.Values(wrong), func(a, b error) int { return cmp.Compare(a.Error(), b.Error()) })
	edits := starter.FindEdits(files)
	if err := errors.Join(append(all, saveQuality(opt.Quality, folder, all, edits))...); err != nil {
		return err
	}
	if opt.JSON {
		return plaintext.WriteJSON(w, struct {
			Boards []string       `json:"boards"`
			Edit   []starter.Edit `json:"edit"`
		}{boards, slices.Concat([]starter.Edit{}, edits)})
	}
	report.Annotate(w, "only you know", findingsOf(edits)...)
	showEdits(w, edits)
	fmt.Fprintf(w, "boards that can be read: %d, lines to edit: %d\n", len(boards), len(edits))
	return nil
}

// findingsOf returns the lines to edit as findings of the lowest severity.
func findingsOf(edits []starter.Edit) (all []report.Finding) {
	for _, e := range edits {
		all = append(all, report.Finding{File: e.File, Line: e.Line, Text: "only you know: " + e.What, Info: true})
	}
	return all
}

// saveQuality writes faults and lines to edit to file as a GitLab code quality report, even if
// there are none. A fault without a file gets the folder boards. If file is "", it writes nothing.
func saveQuality(file, boards string, wrong []error, edits []starter.Edit) error {
	if file == "" {
		return nil
	}
	var all []report.Finding
	for _, err := range wrong {
		all = append(all, report.FindingsIn(err.Error())...)
	}
	all = append(all, findingsOf(edits)...)
	var text bytes.Buffer
	if err := report.WriteQuality(&text, "slipway board check", boards, all); err != nil {
		return err
	}
	if err := renameio.WriteFile(file, text.Bytes(), 0o644); err != nil {
		if failed := (*fs.PathError)(nil); errors.As(err, &failed) {
			failed.Path = file // in place of the file beside it
		}
		return localfile.Unwritable(filepath.Dir(file), err)
	}
	return nil
}

// checkBoard loads a board's board.yml, suites and layers. It returns the board and first fault.
func checkBoard(ctx context.Context, board string, opt images.Options) (images.Spec, error) {
	spec, err := images.Load(board)
	if err == nil {
		err = suite.CheckListed(spec)
	}
	if err == nil && spec.Debian == nil {
		err = images.CheckProject(ctx, spec, opt)
	}
	return spec, err
}
