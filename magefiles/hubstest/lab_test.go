package hubstest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"slipway/ci/hub/access"
	"slipway/ci/hub/bookstest"
	"slipway/ci/job"
	"slipway/images"
	"slipway/layers/localfile"
	"slipway/layers/run"
)

// Kind is the kind of the simulated boards.
const Kind = "simulated"

// labOptions are what a lab needs.
type labOptions struct {
	Dir                string // an empty folder
	Program            string // this test program, which is slipway with simulated boards
	Slipway            string // the program of hubs, if not "": without simulated boards
	Hubs               int
	OfHubs, OfStations []string // variables of their processes
	StationProgram     string   // if not ""
	Stations           int
	Boards             int  // of each station
	Parallel           int  // jobs of each station at once
	Quick              bool // the boards take no time
	SSH                bool // the boards are servers of OpenSSH
	Apart              bool // each machine has a network namespace, on a bridge; else all are on loopback
}

// Lab is a number of machines.
type Lab struct {
	labOptions
	Hubs     []*Machine
	Stations []*Machine
	Admin    *access.Client
	desk     *Machine // of the admin
	env      []string // of all
}

// newLab starts all hubs and stations. It waits until the first hub knows all boards.
func newLab(ctx context.Context, o labOptions) (*Lab, error) {
	l := &Lab{labOptions: o}
	if o.Apart {
		err := batch(ctx, run.Command{Argv: []string{"ip", "-batch", "-"}}, "link add br0 type bridge", "address add 10.77.255.1/16 dev br0", "link set br0 up")
		if err != nil {
			return nil, err
		}
	}
	l.desk = &Machine{Name: "desk", Dir: filepath.Join(o.Dir, "desk"), lab: l}
	if l.SSH {
		l.env = []string{images.BoardsVariable + "=" + filepath.Join(l.desk.Dir, "boards")}
	}
	if err := errors.Join(os.Mkdir(l.desk.Dir, 0o755), os.Setenv("XDG_STATE_HOME", l.desk.Dir)); err != nil { // for the admin's identity
		return nil, err
	}
	if err := l.startHubs(ctx); err != nil {
		return nil, err
	}
	for i := range o.Stations {
		if _, err := l.AddStation(ctx, fmt.Sprintf("st%02d", i+1)); err != nil {
			return nil, err
		}
	}
	return l, l.WaitForBoards(ctx)
}

// add makes a machine, with a network namespace perhaps.
func (l *Lab) add(ctx context.Context, name string, network int) (*Machine, error) {
	m := &Machine{Name: name, Address: "127.0.0.1", Dir: filepath.Join(l.Dir, name), lab: l}
	if err := os.Mkdir(m.Dir, 0o755); err != nil || !l.Apart {
		return m, err
	}
	n := network<<8 + len(l.Hubs) + len(l.Stations) + 1
	m.Address = fmt.Sprintf("10.77.%d.%d", n>>8, n&0xff)
	return m, m.plugIn(ctx, n)
}

// startHubs starts the first hub, lets the others join it, and the admin. Several are a cluster.
func (l *Lab) startHubs(ctx context.Context) error {
	var addresses []string
	for i := range l.labOptions.Hubs {
		m, err := l.add(ctx, fmt.Sprintf("hub%d", i+1), 0)
		if err != nil {
			return err
		}
		l.Hubs, addresses = append(l.Hubs, m), append(addresses, m.Address)
	}
	for i, m := range l.Hubs {
		m.program, m.Env, m.argv = l.Slipway, l.OfHubs, []string{"hub", "--name=" + m.Address}
		if len(l.Hubs) > 1 {
			m.argv = append(m.argv, "--cluster="+strings.Join(addresses, ","))
		}
		if i > 0 {
			if err := join(ctx, l.Hubs[0], m, "hub", m.Address); err != nil {
				return err
			}
		}
		if err := m.Start(); err != nil {
			return err
		}
		if i == 0 && len(l.Hubs) > 1 {
			if _, err := m.waitForWords(ctx, "slipway hub invite hub "); err != nil {
				return err
			}
		}
	}
	words, err := l.Hubs[0].waitForWords(ctx, "slipway join ")
	if err == nil {
		_, err = l.desk.Run(ctx, "join", words[0], words[1])
	}
	if err != nil {
		return err
	}
	return l.Dial(ctx)
}

// join lets a machine join as who is invited, by a line that is typed on another machine.
func join(ctx context.Context, at, m *Machine, invite ...string) error {
	line, err := at.Run(ctx, append([]string{"hub", "invite"}, invite...)...)
	if err != nil {
		return err
	}
	words := strings.Fields(line) // slipway join ADDRESS TOKEN
	_, err = m.Run(ctx, words[1:]...)
	return err
}

// waitForWords waits until a machine's process has printed a text, and returns the words after it.
func (m *Machine) waitForWords(ctx context.Context, text string) (words []string, err error) {
	err = until(ctx, func() bool {
		_, after, found := strings.Cut(string(localfile.Tail(m.LogPath(), 1<<16)), text)
		line, _, whole := strings.Cut(after, "\n")
		words = strings.Fields(line)
		return found && whole || m.Alive() != nil
	})
	return words, errors.Join(err, m.Alive())
}

// Dial connects the admin.
func (l *Lab) Dial(ctx context.Context) error {
	id, err := access.Load("", false)
	if err == nil {
		l.Admin, err = id.Dial(ctx)
	}
	return err
}

// AddStation makes a station, and starts it.
func (l *Lab) AddStation(ctx context.Context, name string) (*Machine, error) {
	m, err := l.makeStation(ctx, name)
	if err == nil {
		err = m.Start()
	}
	return m, err
}

// makeStation makes a station with its boards, which joins by an invitation.
func (l *Lab) makeStation(ctx context.Context, name string) (*Machine, error) {
	m, err := l.add(ctx, name, 1)
	if err != nil {
		return nil, err
	}
	var text strings.Builder
	fmt.Fprintf(&text, "parallel: %d\n", l.Parallel)
	if !l.SSH {
		text.WriteString("boards:\n")
	}
	for i := range l.Boards {
		board := fmt.Sprintf("%s-b%02d", name, i+1)
		dir := filepath.Join(l.Dir, "boards", board)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
		if l.Quick {
			err = os.WriteFile(filepath.Join(dir, quickName), nil, 0o600)
		}
		m.Boards = append(m.Boards, board)
		if !l.SSH {
			fmt.Fprintf(&text, "  %s: {board: %s, host: %q}\n", board, Kind, dir)
		}
	}
	if l.SSH {
		inventory, err := l.startServers(ctx, m)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&text, "inventory: %s\n", inventory)
	}
	config := filepath.Join(l.Dir, name+".yml")
	err = errors.Join(err, os.WriteFile(config, []byte(text.String()), 0o600))
	if err == nil {
		err = join(ctx, l.desk, m, "station", name)
	}
	m.program, m.Env, m.argv = l.StationProgram, l.OfStations, []string{"station", config}
	l.Stations = append(l.Stations, m)
	return m, err
}

// WaitForBoards waits until all stations are heard with all boards free, as after a round without a
// fault.
func (l *Lab) WaitForBoards(ctx context.Context) error {
	var last error
	err := until(ctx, func() bool {
		list, err := access.List[job.BoardList](ctx, l.Admin, job.VerbBoardList, job.ListWish{})
		free := 0
		for _, b := range list.Boards {
			if b.Heard && b.Job == "" {
				free++
			}
		}
		last = fmt.Errorf("%d of %d boards are free and heard: %w", free, len(l.Stations)*l.Boards, err)
		return err == nil && free == len(l.Stations)*l.Boards || l.Alive() != nil
	})
	if err != nil {
		err = errors.Join(last, err)
	}
	return errors.Join(err, l.Alive())
}

// Ask asks a hub as the admin, for at most 10 seconds.
func Ask[Out any](ctx context.Context, l *Lab, verb string, in any) (Out, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return access.Ask[Out](ctx, l.Admin, verb, in)
}

// Alive returns an error if a process ended although nobody killed it.
func (l *Lab) Alive() (err error) {
	for _, m := range slices.Concat(l.Hubs, l.Stations) {
		err = errors.Join(err, m.Alive())
	}
	return err
}

// KeepBooks reads the files of all boards, and compares them with what the hub says. It returns all
// jobs.
func (l *Lab) KeepBooks(ctx context.Context) ([]job.Change, error) {
	list, err := access.List[job.Changes](ctx, l.Admin, job.VerbJobList, job.ListWish{})
	if err != nil {
		return nil, err
	}
	audit, err := bookstest.Audit(ctx, l.Admin)
	if err != nil {
		return nil, err
	}
	files := map[string][]bookstest.Event{}
	if l.SSH {
		return list.Jobs, l.checkServers(list.Jobs)
	}
	for _, m := range l.Stations {
		for _, name := range m.Boards {
			if files[name], err = bookstest.Read(l.BoardFile(name)); err != nil {
				return nil, err
			}
		}
	}
	return list.Jobs, bookstest.Check(list.Jobs, audit, files)
}

// BoardFile returns the file of a simulated board.
func (l *Lab) BoardFile(name string) string { return filepath.Join(l.Dir, "boards", name, "file") }

// Job returns a job for a board of a station.
func Job(m *Machine, name string) job.Job {
	return job.Job{V: job.Version, ID: job.NewID(), Station: m.Name, Name: name, Board: Kind, Steps: []job.Step{{Do: job.Smoke}}, LimitMS: time.Hour.Milliseconds(), StartWithinMS: time.Hour.Milliseconds()}
}

// RunJob adds a job for a board, and waits until it has passed.
func (l *Lab) RunJob(ctx context.Context, m *Machine, name string) (job.Job, error) {
	c, err := Ask[job.Change](ctx, l, job.VerbJobAdd, Job(m, name))
	if err != nil {
		return c.Job, err
	}
	j, err := access.Wait(ctx, l.Admin, c.Job.ID)
	return j, errors.Join(err, access.Err(j))
}

// Close ends all processes but those of jobs, which end soon, and removes the network.
func (l *Lab) Close() error {
	err := l.Admin.Close()
	remove := []string{}
	for _, m := range slices.Concat(l.Stations, l.Hubs) {
		m.Kill()
		remove = append(remove, "link delete "+m.outside)
	}
	if l.Apart {
		err = errors.Join(err, batch(context.Background(), run.Command{Argv: []string{"ip", "-batch", "-"}}, append(remove, "link delete br0")...))
	}
	return err
}

// Jobs returns the folder of a station's jobs.
func (m *Machine) Jobs() string { return filepath.Join(m.Dir, "slipway", "station", m.Name, "jobs") }

// Children returns the processes of a station's jobs whose boards are at work.
func (m *Machine) Children() (pids []int) {
	folders, _ := job.Folders(m.Jobs()) // none yet
	for _, f := range folders {
		if state, pid, err := f.State(); err == nil && state == job.Held && localfile.Exists(f.Progress()) {
			pids = append(pids, pid)
		}
	}
	return pids
}
