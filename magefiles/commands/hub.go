package commands

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"slipway/ci/hub"
	"slipway/ci/hub/access"
	hubpage "slipway/ci/hub/page"
	"slipway/ci/job"
	"slipway/ci/report"
	"slipway/ci/station"
	"slipway/flash/fetch"
	"slipway/flash/identity"
	"slipway/images"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
	"slipway/layers/progress"
)

// hubGroup returns the command hub, which keeps the boards and jobs of several machines.
func hubGroup() *Command {
	c := New("hub", "Run a hub: one list of boards, jobs and people for several machines")
	c.Long = `A station is a machine that has boards, and does their jobs. The hub keeps the list of boards, jobs and
people, in NATS inside this program, and has a web page.

Every connection has TLS and an identity. The first start prints the line with which the first admin
joins. ci/hub/README.md explains hubs.`
	c.Example = `slipway hub --name=hub.example.com
slipway hub --name=192.0.2.5,bench.local --page=:8444 --state=/srv/hub
slipway hub --name=h1 --cluster=h1,h2,h3
slipway hub --nats=nats://nats.example.com --creds=hub.creds  # records in another NATS, 2.11 or later`
	names := c.Names("name", "the names and addresses by which others reach this machine, with commas between them; its host name if not given")
	listen := c.Text("listen=ADDRESS", ":4222", "where stations and commands connect; :4222 if not given")
	pageAt := c.Text("page=ADDRESS", ":8443", "where the web page is, and where others join; :8443 if not given")
	cluster := c.Names("cluster", "three hubs that keep the same records, one of them this one: HOST or HOST:PORT of each, where they reach each other; port 6222 if not given")
	nats := c.Text("nats=URL", "", "keep the records in another NATS with JetStream: nats://HOST or tls://HOST, several with commas between them")
	creds := c.Text("creds=FILE", "", "the credentials of that NATS, in its own form")
	replicas := c.choice("replicas", []string{"1", "3"}, "how many servers of that NATS keep each record; 3 in a cluster if not given, else 1")
	state := c.hubState()
	c.check = func([]string) error {
		return errors.Join(c.refuseTogether("nats", "cluster"), c.needs("creds", "nats"), c.needs("replicas", "nats"))
	}
	c.RunSignalled(func(ctx context.Context, _ []string) error {
		o, err := hubOptions(*names, *state)
		if err != nil {
			return err
		}
		o.Listen, o.Page, o.Log, o.Handler, o.Cluster = *listen, *pageAt, io.Discard, hubpage.New, *cluster
		o.NATS, o.Creds = *nats, *creds
		o.Replicas, _ = strconv.Atoi(*replicas) // "" is 0
		o.First = func(others []string) {
			fmt.Fprintf(stdout, "the other hubs join this one. On this machine, for each:\n  slipway hub invite hub %s\n", strings.Join(others, "\n  slipway hub invite hub "))
		}
		o.Ready = func(address, token string) {
			progress.Release(ctx)
			writeReady(stdout, address, token)
		}
		debug.SetGCPercent(50) // a hub is always on: less memory for a little more work
		return unlessStopped(ctx, hub.Run(ctx, o))
	})
	return c.with(hubOpenCommand(), hubBoardsCommand(), hubReportCommand(), newGroup("invite", "Invite a person, a station or another hub", hubInvitePersonCommand(), hubInviteStationCommand(), hubInviteHubCommand()), hubPeopleCommand(), hubRemoveCommand(), hubLogCommand(),
		newGroup("table", "Keep tables of identities for the flashing places of several stations", tableAddCommand(), tableListCommand(), tableShowCommand(), tableFreeCommand()))
}

// hubOptions returns the options of a hub with these names and this state folder, or else defaults.
func hubOptions(names []string, state string) (o hub.Options, err error) {
	if len(names) == 0 {
		name, err := os.Hostname()
		if err != nil {
			return o, err
		}
		names = []string{name}
	}
	if state, err = hubFolder(state); err != nil {
		return o, err
	}
	admin := "admin"
	if u, err := user.Current(); err == nil && job.CheckName("the name", u.Username) == nil {
		admin = u.Username
	}
	return hub.Options{Dir: state, Names: names, Admin: admin}, nil
}

// hubState adds the flag --state, for hubFolder.
func (c *Command) hubState() *string {
	return c.Text("state=FOLDER", "", "the folder with the hub's keys and records; hub in Slipway's state folder if not given")
}

func hubFolder(state string) (string, error) {
	if state != "" {
		return state, nil
	}
	home, err := images.StateHome()
	return filepath.Join(home, "hub"), err
}

func writeReady(w io.Writer, address, token string) {
	fmt.Fprintf(w, "the hub answers at https://%s/\n", address)
	if token != "" {
		fmt.Fprintf(w, "for its first admin, within an hour:\n  slipway join %s %s\n", address, token)
	}
}

// unlessStopped returns nil for an error of a program that a signal ended, as that is its only end.
func unlessStopped(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

func hubOpenCommand() *Command {
	c := New("open", "Print a link that signs you in on a hub's page")
	c.Long = `The link works once, within a minute. Then you are signed in for 12 hours.

The browser warns, as it does not know the hub's own certificate authority. Its certificate is ca.pem in
the hub's state folder. Add it in the browser's settings.`
	c.Example = `slipway hub open`
	c.onHub(func(ctx context.Context, client *access.Client, _ []string) error {
		link, err := pageLink(ctx, client)
		if err != nil {
			return err
		}
		fmt.Fprintln(stderr, "it signs you in once, within a minute:")
		_, err = fmt.Fprintln(stdout, link)
		return err
	})
	return c
}

// pageLink returns a link that signs a person in. The secret is in its fragment, which browsers send
// to nobody.
func pageLink(ctx context.Context, client *access.Client) (string, error) {
	i, err := access.Ask[job.Invitation](ctx, client, job.VerbOpen, struct{}{})
	return fmt.Sprintf("https://%s/in#%s", client.Page(), i.Secret), err
}

func hubInvitePersonCommand() *Command {
	c := New("person NAME", "Print the line with which a person joins, once")
	c.Long = `The person types the line on their own machine.`
	c.Example = `slipway hub invite person alice --role=operator --valid=24h`
	role := c.choice("role", []string{string(job.Viewer), string(job.Operator), string(job.Admin)}, "what the person may do; viewer if not given")
	return c.invites(func() job.Role { return job.Role(cmp.Or(*role, string(job.Viewer))) })
}

func hubInviteStationCommand() *Command {
	c := New("station NAME", "Print the line with which a station joins, once")
	c.Long = `Type the line on the station. It then has this name on the hub.`
	c.Example = `slipway hub invite station bench-3`
	return c.invites(func() job.Role { return job.AStation })
}

func hubInviteHubCommand() *Command {
	c := New("hub NAME", "Print the line with which another hub of a cluster joins, once")
	c.Long = `Type this on the machine of a hub that has joined, or of the first one. That hub must run, but it need
not reach the others. The line gives the new hub the secret of all keys. So only who may read the
state folder can make it.`
	c.Example = `slipway hub invite hub h2`
	valid := c.validFor()
	state := c.hubState()
	c.check = func(words []string) error { return job.CheckName("NAME", words[0]) }
	c.RunSignalled(func(_ context.Context, words []string) error {
		dir, err := hubFolder(*state)
		if err != nil {
			return err
		}
		address, token, err := hub.InviteHub(dir, words[0], *valid)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(stdout, "slipway join %s %s\n", address, token)
		return err
	})
	return c
}

func (c *Command) validFor() *time.Duration {
	return c.Span("valid", time.Hour, "how long the invitation is good, 24h at most; 1h if not given")
}

// invites sets c.Run to print an invitation for the role.
func (c *Command) invites(role func() job.Role) *Command {
	valid := c.validFor()
	c.check = func(words []string) error { return job.CheckName("NAME", words[0]) }
	c.onHub(func(ctx context.Context, client *access.Client, words []string) error {
		p := job.Person{V: job.Version, Name: words[0], Role: role(), ValidMS: valid.Milliseconds()}
		i, err := access.Ask[job.Invitation](ctx, client, job.VerbInvite, p)
		if err != nil {
			return err
		}
		at := client.Hub
		if len(client.Pages) > 1 {
			at = strings.Join(client.Pages, ",")
		}
		_, err = fmt.Fprintf(stdout, "slipway join %s %s\n", at, access.Token(i.Secret, []byte(client.Authority)))
		return err
	})
	return c
}

// onHub adds the flag --hub to a command, whose work gets a connection to that hub.
func (c *Command) onHub(work func(ctx context.Context, client *access.Client, words []string) error) {
	name := c.hubFlag("the hub (or SLIPWAY_HUB); the one that was joined last if not given")
	c.RunSignalled(func(ctx context.Context, words []string) error {
		return onHub(ctx, *name, func(client *access.Client) error { return work(ctx, client, words) })
	})
}

// lists completes a command that asks a hub for a list, and prints it as JSON or by show.
func lists[All any](c *Command, verb string, show func(w io.Writer, all All) error) *Command {
	return listsBy(c, verb, func() job.ListWish { return job.ListWish{} }, func(*All) {}, show)
}

// listsBy is lists for the list that a wish names, and edits it before it is printed.
func listsBy[All any](c *Command, verb string, wish func() job.ListWish, edit func(*All), show func(w io.Writer, all All) error) *Command {
	asJSON := c.Switch("json", "print them as JSON")
	c.onHub(func(ctx context.Context, client *access.Client, _ []string) error {
		all, err := access.List[All](ctx, client, verb, wish())
		edit(&all)
		return printResult(all, err, *asJSON, func(w io.Writer) error { return show(w, all) })
	})
	return c
}

// wishes completes a command that asks a hub for one change.
func (c *Command) wishes(verb string, wish func(words []string) any) *Command {
	c.onHub(func(ctx context.Context, client *access.Client, words []string) error {
		_, err := access.Ask[any](ctx, client, verb, wish(words))
		return err
	})
	return c
}

func init() { fetch.Hub = access.Registry }

// useHub returns the identity for a hub, as access.Load does. "hub:" in a place is then that hub, here
// and in children.
func useHub(name string, station bool) (access.Identity, error) {
	id, err := access.Load(name, station)
	if err == nil {
		err = os.Setenv(access.Variable, id.Hub)
	}
	return id, err
}

// onHub calls work with a connection to a hub.
func onHub(ctx context.Context, name string, work func(*access.Client) error) error {
	id, err := useHub(name, false)
	if err != nil {
		return err
	}
	client, err := id.Dial(ctx)
	if err != nil {
		return err
	}
	defer client.Close()
	return work(client)
}

func hubBoardsCommand() *Command {
	c := New("boards", "List the boards of a hub's stations")
	c.Example = `slipway hub boards --json`
	return lists(c, job.VerbBoardList, func(w io.Writer, list job.BoardList) error {
		return table(w, "NAME\tBOARD\tSTATION\tSTATE\tLAST", list.Boards, func(b job.HubBoard) []any {
			state := plaintext.Either(!b.Heard, "not heard", plaintext.Either(b.Job != "", "at work: "+b.Job, plaintext.Either(b.Note != "", b.Note, "free")))
			last := ""
			if b.Last != nil {
				last = string(b.Last.Kind)
			}
			return []any{b.Name, b.Board.Board, b.Station, state, last}
		})
	})
}

func hubPeopleCommand() *Command {
	c := New("people", "List the people and stations that joined a hub, and open invitations")
	c.Example = `slipway hub people --json`
	return lists(c, job.VerbPeople, func(w io.Writer, people job.People) error {
		return table(w, "NAME\tROLE\tSINCE\tBY", slices.Concat(people.People, people.Invited), func(p job.Person) []any {
			role, since := plaintext.Either(p.Key == "", "removed", string(p.Role)), p.Since.Format(time.DateTime)
			if !p.Until.IsZero() {
				role, since = "invited as "+string(p.Role), "until "+p.Until.Format(time.DateTime)
			}
			return []any{p.Name, role, since, p.By}
		})
	})
}

func hubReportCommand() *Command {
	c := New("report NAME", "Print the newest report of a board, or list its reports")
	c.Long = `NAME is the board's name on the hub. The hub keeps the last 200 reports of each board.`
	c.Example = `slipway hub report lab3-07
slipway hub report lab3-07 --list
slipway hub report lab3-07 --number=412 --as=html`
	list := c.Switch("list", "list the numbers, times and jobs of its reports")
	number := c.Number("number", 0, 1, "the number of an earlier report")
	form := c.reportForm()
	c.onHub(func(ctx context.Context, client *access.Client, words []string) error {
		b, err := access.FindBoard(ctx, client, words[0])
		if err != nil {
			return err
		}
		wish := job.ReportWish{Station: b.Station, Name: b.Name, N: uint64(*number)}
		if *list {
			all, err := access.Ask[job.Reports](ctx, client, job.VerbReportList, wish)
			return printResult(all, err, *form != nil, func(w io.Writer) error {
				return table(w, "NUMBER\tAT\tJOB", all.Reports, func(r job.Report) []any {
					return []any{r.N, r.At.UTC().Format(time.RFC3339), r.ID}
				})
			})
		}
		sent, err := access.Ask[job.Report](ctx, client, job.VerbReportGet, wish)
		if err != nil {
			return err
		}
		one, err := sent.Only()
		return runUnlessFailed(err, func() error { return showReport(one, nil, *form) })
	})
	return c
}

// table writes a title and a line of cells for each of all.
func table[T any](w io.Writer, title string, all []T, cells func(T) []any) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, title)
	for _, one := range all {
		var line []string
		for _, cell := range cells(one) {
			line = append(line, plaintext.OneLine(fmt.Sprint(cell))) // a line break would forge a line
		}
		fmt.Fprintln(tw, strings.Join(line, "\t"))
	}
	return tw.Flush()
}

func hubRemoveCommand() *Command {
	c := New("remove NAME", "Refuse a person or a station from now on")
	c.Long = `Its connections end at once, and its invitations hold no more.`
	c.Example = `slipway hub remove bench-3`
	return c.wishes(job.VerbRemove, func(words []string) any { return job.Person{Name: words[0]} })
}

func hubLogCommand() *Command {
	c := New("log", "Print who asked a hub for which change, and what it refused, the newest last")
	c.Long = `It prints 500 records, and the line that prints older ones.`
	c.Example = `slipway hub log --json
slipway hub log --before=1201`
	before := c.Number("before", 0, 1, "print the records before this number; the newest if not given")
	wish := func() job.ListWish { return job.ListWish{Before: uint64(*before)} }
	return listsBy(c, job.VerbAudit, wish, func(*hub.Audit) {}, func(w io.Writer, audit hub.Audit) error {
		if audit.First > 1 {
			defer fmt.Fprintf(w, "for older ones: slipway hub log --before=%d\n", audit.First)
		}
		return table(w, "AT\tWHO\tROLE\tASKED FOR\tWHAT", audit.Records, func(r hub.Record) []any {
			what := plaintext.Either(r.Refused == "", r.What, "refused: "+r.Refused)
			return []any{r.At.UTC().Format(time.RFC3339), r.Who, r.Role, r.Verb, what}
		})
	})
}

func tableAddCommand() *Command {
	c := New("add NAME FILE", "Add the rows of a CSV file to a table of identities")
	c.Long = `The first column names the rows. A row that the table has already stays as it is. place.yml names the
table as hub:NAME: flash/identity.md. Add no row that a card got from another table.`
	c.Example = `slipway hub table add lab boards.csv`
	c.check = func(words []string) error { return job.CheckName("NAME", words[0]) }
	c.onHub(func(ctx context.Context, client *access.Client, words []string) error {
		data, err := localfile.Read(words[1], 16<<20)
		if err != nil {
			return localfile.ExplainUnreadable(words[1], err)
		}
		head, _, lines, err := identity.Lines(words[1], data)
		if err != nil {
			return report.Because(ctx, report.ErrWrong, err)
		}
		for some := range slices.Chunk(lines, 200) { // each is a write that the hub's disk has
			rows := job.TableRows{Table: words[0], CSV: head + strings.Join(some, "")}
			if _, err := access.Ask[struct{}](ctx, client, job.VerbTableAdd, rows); err != nil {
				return err
			}
		}
		return nil
	})
	return c
}

func tableListCommand() *Command {
	c := New("list", "List the tables of a hub, and how many rows are free, reserved and used")
	c.Example = `slipway hub table list --json`
	return lists(c, job.VerbTables, func(w io.Writer, all job.Tables) error {
		return table(w, "TABLE\tROWS\tFREE\tRESERVED\tUSED", all.Tables, func(t job.TableCount) []any {
			return []any{t.Table, t.Rows, t.Rows - t.Reserved - t.Used, t.Reserved, t.Used}
		})
	})
}

func tableShowCommand() *Command {
	c := New("show NAME", "Show which station holds which rows of a table, and which cards have them")
	c.Example = `slipway hub table show lab --json`
	asJSON := c.Switch("json", "print them as JSON")
	c.onHub(func(ctx context.Context, client *access.Client, words []string) (err error) {
		var all job.Table
		for some := (job.Table{More: true}); some.More && err == nil; all.Rows = append(all.Rows, some.Rows...) {
			some, err = access.Ask[job.Table](ctx, client, job.VerbTable, job.TableWish{Table: words[0], From: len(all.Rows)})
		}
		return printResult(all, err, *asJSON, func(w io.Writer) error { return showRows(w, all.Rows) })
	})
	return c
}

func showRows(w io.Writer, rows []job.TableRow) error {
	return table(w, "ROW\tSTATION\tPLACE\tCARD\tSINCE", rows, func(r job.TableRow) []any {
		since := plaintext.Either(r.Card == "", "", r.Used.UTC().Format(time.RFC3339))
		return []any{r.Row, r.Station, r.Place, r.Card, since}
	})
}

func tableFreeCommand() *Command {
	c := New("free NAME STATION", "Give back the rows that a removed station held and no card has")
	c.Long = `Cards that the station wrote and the hub did not hear of may have some of these rows. Look at the
records of its places first.`
	c.Example = `slipway hub table free lab bench-3`
	c.onHub(func(ctx context.Context, client *access.Client, words []string) error {
		free, err := access.Ask[job.Table](ctx, client, job.VerbTableFree, job.TableWish{Table: words[0], Station: words[1]})
		return printResult(free, err, false, func(w io.Writer) error { return showRows(w, free.Rows) })
	})
	return c
}

func joinCommand() *Command {
	c := New("join ADDRESS TOKEN", "Join a hub, as the person or the station that was invited")
	c.Long = `An admin of the hub gets this line from "slipway hub invite". Slipway makes a key here, which never leaves
this machine, and keeps it in the folder hubs of its state folder.

The token of another hub begins with "HUB-". Then this machine becomes a hub of that cluster.`
	c.Example = `slipway join hub.example.com:8443 TOKEN
slipway join h1:8443,h2:8443,h3:8443 TOKEN  # the first that answers`
	state := c.hubState()
	c.RunSignalled(func(ctx context.Context, words []string) error {
		if strings.HasPrefix(words[1], access.HubToken) {
			return joinAsHub(ctx, words[0], words[1], *state)
		}
		id, err := access.Join(ctx, words[0], words[1])
		if err != nil {
			return err
		}
		next := plaintext.Either(id.Role == job.AStation, "station", "hub open")
		_, err = fmt.Fprintf(stdout, "%s joined %s with the role %s\nnext: slipway %s\n", id.Name, id.Hub, id.Role, next)
		return err
	})
	return c
}

// joinAsHub makes the state folder of another hub of a cluster.
func joinAsHub(ctx context.Context, addresses, token, state string) error {
	dir, err := hubFolder(state)
	if err == nil {
		err = hub.CanJoin(dir)
	}
	if err != nil {
		return err
	}
	joined, err := access.JoinHub(ctx, addresses, token)
	if err == nil {
		err = hub.KeepShare(dir, joined)
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(stdout, "%s joined the cluster\nnext: slipway hub --name=%[1]s --cluster=%s\n", plaintext.OneLine(joined.Name), plaintext.OneLine(strings.Join(joined.Hub.Hubs, ",")))
	return err
}

// stationGroup returns the command station, which does the jobs of a hub on boards of this machine.
func stationGroup() *Command {
	c := New("station [FILE]", "Do a hub's jobs for the boards of this machine, until Ctrl-C")
	c.Long = `FILE is station.yml if not given. It names the boards; ci/hub/README.md explains it. This machine must
have joined the hub as a station.

The station starts a program for each job: the line that you would type here. This program continues when
the station ends, and the next start of the station waits for it.`
	c.Example = `slipway station
slipway station bench.yml --parallel=4`
	parallel := c.Number("parallel", 0, 1, "jobs at a time; what station.yml says, or 4, if not given")
	name := c.hubFlag("the hub (or SLIPWAY_HUB); the one that was joined last if not given")
	c.RunSignalled(func(ctx context.Context, words []string) error {
		id, err := useHub(*name, true)
		if err != nil {
			return err
		}
		o, err := stationOptions(id, words[0])
		if err != nil {
			return err
		}
		o.Parallel = *parallel
		progress.Release(ctx)
		return unlessStopped(ctx, station.Run(ctx, o))
	})
	return c.with(stationListCommand(), stationDrainCommand(), stationNameCommand(), stationUnnameCommand())
}

func stationOptions(id access.Identity, config string) (station.Options, error) {
	home, err := images.StateHome()
	if err != nil {
		return station.Options{}, err
	}
	program, err := os.Executable()
	if err != nil {
		return station.Options{}, err
	}
	return station.Options{Identity: id, State: filepath.Join(home, "station", id.Name), Config: stationFile(config), Program: program, Log: stderr}, nil
}

// stationFile returns the path of station.yml: the one given, or that of this folder, or "".
func stationFile(given string) string {
	if given == "" && isFile("station.yml") {
		return "station.yml"
	}
	return given
}

func stationListCommand() *Command {
	c := New("list", "List the stations of a hub, and whether it hears them")
	c.Example = `slipway station list --json`
	return lists(c, job.VerbStationList, func(w io.Writer, list job.StationList) error {
		return table(w, "STATION\tSTATE\tMACHINE\tSLIPWAY\tFREE\tBUILDS ON", list.Stations, func(s job.HubStation) []any {
			state := plaintext.Either(s.Heard, plaintext.Either(s.Draining, "draining", "heard"), "not heard since "+s.At.UTC().Format(time.RFC3339))
			return []any{s.Name, state, s.Machine, s.Program, fmt.Sprintf("%.1f GiB", float64(s.FreeBytes)/(1<<30)), plaintext.Either(s.Builds, s.Arch, "")}
		})
	})
}

func stationNameCommand() *Command {
	c := New("name STATION DEVICE NAME", "Name a device that a station announces, so that it takes jobs")
	c.Long = `DEVICE is its name in "hub boards". The station keeps the name in its state folder, and refuses one that
its station.yml has. It is for an admin.`
	c.Example = `slipway station name bench-3 sdb card-7 --board=raspberrypi5`
	board := c.Text("board=BOARD", "", "the kind of the board")
	c.check = func([]string) error {
		if *board == "" {
			return errors.New("--board is missing: which kind of board is it?")
		}
		return nil
	}
	return c.wishes(job.VerbNameDevice, func(words []string) any {
		return job.NameDevice{Station: words[0], Device: words[1], Name: words[2], Board: *board}
	})
}

func stationUnnameCommand() *Command {
	c := New("unname STATION DEVICE", "Take back a device's name, so that it takes no jobs")
	c.Long = `DEVICE is the name that "station name" gave. It is for an admin.`
	c.Example = `slipway station unname bench-3 card-7`
	return c.wishes(job.VerbNameDevice, func(words []string) any {
		return job.NameDevice{Station: words[0], Device: words[1]}
	})
}

func stationDrainCommand() *Command {
	c := New("drain STATION", "Let a station end its jobs and begin no others, before an upgrade")
	c.Long = `It waits until the jobs that run there have ended.`
	c.Example = `slipway station drain bench-3
slipway station drain bench-3 --back`
	back := c.Switch("back", "let it begin jobs again")
	c.onHub(func(ctx context.Context, client *access.Client, words []string) error {
		return station.Drain(ctx, client, words[0], *back)
	})
	return c
}
