package job

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"slipway/layers/localfile"
)

// Folder is one job's folder on a station, <state>/jobs/<id>. It is the truth about what was done:
// without an order nothing was begun, and with a result nothing is begun again.
type Folder string

// The files of a job's folder.
const (
	orderName    = "order.json"     // before anything runs
	lockName     = "lock"           // held by the job's process, and by the step that it runs
	logName      = "log"            // stderr of the steps, and what the job's process says
	progressName = "progress.jsonl" // a progress.Event on each line
	stepName     = "step-%d.json"   // stdout of a step, counted from 1
	stopName     = "stop-"          // then Gently or Now: the station wants the job's end
	resultName   = "result.json"    // the last one
)

// inventoryName is the inventory of one host, in the board's working folder.
const inventoryName = "one.yml"

// maxOrderBytes limits an order before it is parsed: a job, and how its board is reached.
const maxOrderBytes = 4 * maxFormBytes

// Order is what the job's process does.
type Order struct {
	V        Form   `json:"v"`
	Job      Job    `json:"job"`
	Revision uint64 `json:"revision"` // of the claim
	How      How    `json:"how"`

	// BeginBy is the boot clock's time after which the process does not begin: another run of the
	// station may have its lease then. 0 is no limit.
	BeginBy time.Duration `json:"beginBy,omitempty"`
}

// BootTime returns the boot clock's time, which also counts while the machine is suspended.
func BootTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		panic(err) // each Linux has it
	}
	return time.Duration(t.Nano())
}

// How is how the station reaches the board. The station alone writes it; nothing of it comes from
// a hub.
type How struct {
	Device    string   `json:"device,omitempty"`    // that flash takes
	Inventory string   `json:"inventory,omitempty"` // a YAML inventory with this host alone
	Virtual   bool     `json:"virtual,omitempty"`   // a virtual board in the working folder
	Artifact  string   `json:"artifact,omitempty"`  // folder that the job's artifact is pulled into
	Boards    string   `json:"boards,omitempty"`    // folder of the user's own boards
	Place     string   `json:"place,omitempty"`     // the place.yml of a flashing place
	Power     []string `json:"power,omitempty"`     // program that switches the board off and on
	Recovery  []string `json:"recovery,omitempty"`  // program that brings it into recovery mode
	Clone     string   `json:"clone,omitempty"`     // of Slipway, which a build works in instead of the job's folder
}

// FolderState is what a job's folder says of the job.
type FolderState string

// The states of a folder.
const (
	None   FolderState = "none"   // nothing was begun
	Held   FolderState = "held"   // a process works on it
	Done   FolderState = "done"   // there is a result
	Broken FolderState = "broken" // it was begun, and its process ended without a result
)

// Folders lists the job folders in <state>/jobs, the oldest first.
func Folders(dir string) (all []Folder, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		if e.IsDir() && ids().MatchString(e.Name()) {
			all = append(all, Folder(filepath.Join(dir, e.Name())))
		}
	}
	return all, nil
}

// path returns the path of a file of the folder.
func (f Folder) path(name string) string { return filepath.Join(string(f), name) }

// Log returns the path of the job's log.
func (f Folder) Log() string { return f.path(logName) }

// Progress returns the path of the file with the job's events.
func (f Folder) Progress() string { return f.path(progressName) }

// Work returns the board's working folder, <state>/boards/<name>. It is kept between jobs.
func (f Folder) Work(name string) string {
	return filepath.Join(string(f), "..", "..", "boards", name)
}

// State returns what the folder says, and the process that had the lock last.
func (f Folder) State() (state FolderState, pid int, err error) {
	if !localfile.Exists(f.path(orderName)) {
		return None, 0, nil
	}
	pid, held, err := f.holder()
	switch {
	case err != nil:
		return "", 0, err
	case held:
		return Held, pid, nil
	case localfile.Exists(f.path(resultName)):
		return Done, pid, nil
	}
	return Broken, pid, nil
}

// holder returns the process in the lock's file, and whether that or its step has the lock.
//
// It takes the lock for a moment, and Hold may meet that. So it does not touch a lock that names
// nobody: a process that is about to take it would be refused.
func (f Folder) holder() (pid int, held bool, err error) {
	text := localfile.Tail(f.path(lockName), 200)
	if _, err := fmt.Sscanf(string(text), "process %d,", &pid); err != nil {
		return 0, false, nil
	}
	lock, err := localfile.LockNow(f.path(lockName), 0o644)
	if errors.Is(err, localfile.ErrLocked) {
		return pid, true, nil
	}
	if err == nil {
		lock.Close()
	}
	return pid, false, err
}

// Begin writes the order, with its folder. Without it nothing runs. It replaces an earlier order, of
// an attempt whose process ended.
func (f Folder) Begin(o Order) error {
	o.V = Version
	if err := o.check(); err != nil {
		return err
	}
	made := !localfile.Exists(string(f))
	err := localfile.MkdirAll(string(f))
	if err == nil {
		err = f.write(orderName, o)
	}
	if err == nil {
		err = localfile.SyncFolder(filepath.Dir(string(f))) // which got this one
	}
	if err != nil && made {
		_ = os.Remove(string(f))
	}
	return localfile.Unwritable(string(f), err)
}

// write writes a file by rename, and waits until it is on the disk under its name.
func (f Folder) write(name string, v any) error {
	if err := localfile.WriteJSON(f.path(name), v, 0o600); err != nil {
		return fmt.Errorf("write %s: %w", f.path(name), err)
	}
	return localfile.SyncFolder(string(f))
}

// Order reads the order.
func (f Folder) Order() (Order, error) {
	o, err := read(f.path(orderName), maxOrderBytes, parseOrder)
	if err == nil && o.Job.ID != filepath.Base(string(f)) {
		err = fmt.Errorf("%s: it is of the job %s", f.path(orderName), o.Job.ID)
	}
	return o, err
}

// Result reads the result.
func (f Folder) Result() (Result, error) { return read(f.path(resultName), maxFormBytes, parseResult) }

// read reads a file of at most most bytes, with its name in errors.
func read[T any](name string, most int64, parse func([]byte) (T, error)) (v T, err error) {
	data, err := localfile.Read(name, most)
	if err != nil {
		return v, err
	}
	if v, err = parse(data); err != nil {
		err = fmt.Errorf("%s: %w", name, err)
	}
	return v, err
}

func parseOrder(data []byte) (Order, error) {
	o, err := parse[Order](data, maxOrderBytes)
	if err == nil {
		err = o.check()
	}
	return o, err
}

func (o Order) check() error {
	if err := o.Job.Check(); err != nil {
		return err
	}
	if strings.HasPrefix(o.How.Device, "-") || strings.Contains(o.How.Device, ",") {
		return fmt.Errorf("the device %q is not one", o.How.Device)
	}
	return nil
}

func parseResult(data []byte) (r Result, err error) {
	if err := json.Unmarshal(data, &r); err != nil {
		return r, err
	}
	if r.Kind == "" {
		return r, errors.New("it does not say how the job ended")
	}
	return r, nil
}

// Stop asks the process that works on the folder to end its job. The wish is a file, so it is heard
// once however often it is written, also by a process that starts later. An empty one needs no space
// on a full disk.
func (f Folder) Stop(how Stop) error { return os.WriteFile(f.path(stopName+string(how)), nil, 0o600) }

// asked returns how many SIGINTs the wishes to stop are.
func (f Folder) asked() int {
	switch {
	case localfile.Exists(f.path(stopName + string(Now))):
		return 2
	case localfile.Exists(f.path(stopName + string(Gently))):
		return 1
	}
	return 0
}
