// Package health finds what a hub and a station of this machine lack: as package doctor does for
// builds, it names fault, reason and fix, and changes nothing.
package health

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/jwt/v2"

	"slipway/ci/doctor"
	"slipway/ci/hub"
	"slipway/ci/hub/access"
	"slipway/ci/job"
	"slipway/ci/station"
	"slipway/flash/qemu"
	"slipway/images"
	"slipway/layers/host"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
)

const (
	answerLimit = 10 * time.Second
	expiresSoon = 30 * 24 * time.Hour
	littleSpace = 5 << 30
	unitFolder  = "/var/lib/slipway-hub" // of the unit in the Debian package
)

// Look writes what is found of the hub with this address, or of the one that was joined last, and of
// a station and a hub of this machine. config is the path of station.yml; "" is none. It returns an
// error if a hub's work would stop.
func Look(ctx context.Context, w io.Writer, address, config string, asJSON bool) error {
	home, err := images.StateHome()
	if err != nil {
		return err
	}
	person, noPerson := access.Load(address, false)
	machine, noStation := access.Load(address, true)
	findings := slices.Concat(ofHubHere(filepath.Join(home, "hub")), ofHubHere(unitFolder))
	if noPerson != nil && noStation != nil {
		saw, fix, _ := strings.Cut(noPerson.Error(), "\nnext: ")
		findings = append(findings, stops("identity", saw, "a hub answers only whom it knows", fix))
	}
	if noPerson == nil {
		findings = append(findings, ofIdentity(ctx, person)...)
		findings = append(findings, ofStations(ctx, person)...)
	}
	if noStation == nil {
		findings = append(findings, ofIdentity(ctx, machine)...)
		findings = append(findings, ofStationHere(ctx, filepath.Join(home, "station", machine.Name), config)...)
	}
	if ctx.Err() != nil {
		return fmt.Errorf("doctor was stopped: %w", context.Cause(ctx))
	}
	stopped, err := doctor.Write(w, findings, asJSON)
	if err == nil && stopped > 0 {
		err = fmt.Errorf("%d of the findings would stop the hub's work\nnext: doctor --hub  # after the lines below each STOP", stopped)
	}
	return err
}

// runs returns the finding for a program that holds the lock in its state folder while it runs.
func runs(what, dir, fix string) doctor.Finding {
	lock, err := os.Open(filepath.Join(dir, "lock"))
	if err == nil {
		defer lock.Close()
		if err = localfile.TryLock(lock); errors.Is(err, localfile.ErrLocked) {
			return ok(what, "it runs")
		}
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return stops(what, err.Error(), "its records are there", "ls -ld "+plaintext.Quote(dir))
	}
	return warning(what, "none runs on this machine, and its folder is "+dir, "nothing is done until it runs", fix)
}

func ok(what, saw string, args ...any) doctor.Finding {
	return doctor.Finding{What: what, State: doctor.OK, Saw: fmt.Sprintf(saw, args...)}
}

func warning(what, saw, why, fix string) doctor.Finding {
	return doctor.Finding{What: what, State: doctor.Warning, Saw: saw, Why: why, Fix: fix}
}

func stops(what, saw, why, fix string) doctor.Finding {
	return doctor.Finding{What: what, State: doctor.Stops, Saw: saw, Why: why, Fix: fix}
}

// space returns the finding for the free space of a folder's disk.
func space(what, dir string) doctor.Finding {
	free, err := localfile.FreeBytes(dir)
	if err != nil || free >= littleSpace {
		return ok(what, "%s is free in %s", plaintext.SizeText(free), dir)
	}
	return warning(what, fmt.Sprintf("only %s is free in %s", plaintext.SizeText(free), dir), "on a full disk nothing begins", "df -h "+plaintext.Quote(dir))
}

// ofHubHere looks at the state folder of a hub, if this user has one.
func ofHubHere(dir string) []doctor.Finding {
	if _, err := os.Stat(filepath.Join(dir, "keys.json")); err != nil {
		return nil
	}
	findings := []doctor.Finding{runs("hub here", dir, host.ProgramName()+" hub"), space("hub's disk", dir)}
	hosts, err := hub.OtherNATS(dir)
	if err != nil {
		findings = append(findings, stops("hub here", err.Error(), "it does not start with this folder", "ls -l "+plaintext.Quote(dir)))
	}
	for _, at := range hosts {
		conn, err := net.DialTimeout("tcp", at, answerLimit)
		if err != nil {
			why := "without its NATS the hub refuses all requests"
			findings = append(findings, warning("hub's NATS", err.Error(), why, "on that machine: systemctl status nats-server"))
			continue
		}
		conn.Close()
		findings = append(findings, ok("hub's NATS", "%s listens", at))
	}
	return findings
}

// ofIdentity looks at how long an identity is valid, and asks each address of its hub.
func ofIdentity(ctx context.Context, id access.Identity) []doctor.Finding {
	what := plaintext.Either(id.Role == job.AStation, "station", "person")
	again := fmt.Sprintf("%s hub invite %s %s  # by an admin, after hub remove", host.ProgramName(), what, id.Name)
	claims, err := jwt.DecodeUserClaims(id.JWT)
	if err != nil {
		return []doctor.Finding{stops(what, err.Error(), "a hub answers only whom it knows", again)}
	}
	until := time.Unix(claims.Expires, 0)
	f := ok(what, "%s is %s at %s until %s", id.Name, id.Role, id.Hub, until.UTC().Format(time.DateOnly))
	switch left := time.Until(until); {
	case claims.Expires != 0 && left < 0:
		f.State, f.Why, f.Fix = doctor.Stops, "the identity has expired", again
	case claims.Expires != 0 && left < expiresSoon:
		f.State, f.Why, f.Fix = doctor.Warning, "the identity expires soon", again
	}
	findings := []doctor.Finding{f}
	answers := 0
	for _, address := range id.Addresses {
		one := id
		one.Addresses = []string{address}
		if err := tryHub(ctx, one); err != nil {
			saw, _, _ := strings.Cut(err.Error(), "\nnext: ")
			findings = append(findings, warning("hub", saw, "its other addresses are asked instead", "on that machine: "+host.ProgramName()+" doctor --hub"))
			continue
		}
		answers++
		findings = append(findings, ok("hub", "%s answers", address))
	}
	for i := range findings {
		if findings[i].What == "hub" && answers == 0 {
			findings[i].State, findings[i].Why = doctor.Stops, "no address of the hub answers"
		}
	}
	return findings
}

func tryHub(ctx context.Context, id access.Identity) error {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	client, err := id.Dial(ctx)
	if err == nil {
		client.Close()
	}
	return err
}

// ofStations looks at what the hub says of all stations and their boards.
func ofStations(ctx context.Context, id access.Identity) []doctor.Finding {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	client, err := id.Dial(ctx)
	if err != nil {
		return nil // that is said of its addresses
	}
	defer client.Close()
	stations, err := access.Ask[job.StationList](ctx, client, job.VerbStationList, struct{}{})
	boards, boardsErr := access.List[job.BoardList](ctx, client, job.VerbBoardList, job.ListWish{})
	if err := errors.Join(err, boardsErr); err != nil {
		return []doctor.Finding{stops("hub", err.Error(), "it does not answer requests", "on its machine: "+host.ProgramName()+" doctor --hub")}
	}
	var findings []doctor.Finding
	for _, s := range stations.Stations {
		findings = append(findings, ofStation(s, boards.Boards))
	}
	if len(findings) == 0 {
		findings = []doctor.Finding{warning("stations", "the hub has no station", "a station has the boards", host.ProgramName()+" hub invite station NAME")}
	}
	return findings
}

// ofStation returns the finding for a station, with the first reason for which it does not work.
func ofStation(s job.HubStation, boards []job.HubBoard) doctor.Finding {
	var notes []string
	have := 0
	for _, b := range boards {
		if b.Station != s.Name {
			continue
		}
		have++
		if b.Note != "" {
			notes = append(notes, b.Name+": "+plaintext.OneLine(b.Note))
		}
	}
	const what = "station"
	switch {
	case !s.Heard:
		return warning(what, s.Name+" was not heard since "+s.At.UTC().Format(time.RFC3339), "its jobs wait", fmt.Sprintf("on %s: %s doctor --hub", s.Machine, host.ProgramName()))
	case s.Draining:
		return warning(what, s.Name+" is draining", "it begins no jobs", fmt.Sprintf("%s station drain %s --back", host.ProgramName(), s.Name))
	case s.FreeBytes < littleSpace:
		return warning(what, fmt.Sprintf("%s has only %s of free space", s.Name, plaintext.SizeText(s.FreeBytes)), "on a full disk nothing begins", "df -h  # on "+s.Machine)
	case len(notes) > 0:
		saw := fmt.Sprintf("%s has %d boards:\n%s", s.Name, have, strings.Join(notes, "\n"))
		return warning(what, saw, "these boards do not take all jobs", "correct station.yml on "+s.Machine+", or plug them in")
	}
	return ok(what, "%s has %d boards", s.Name, have)
}

// ofStationHere looks at the station of this machine: its folder, station.yml, and what its boards need.
func ofStationHere(ctx context.Context, dir, config string) []doctor.Finding {
	findings := []doctor.Finding{runs("station here", dir, host.ProgramName()+" station"), space("station's disk", dir)}
	c, err := station.LoadConfig(config)
	if err != nil {
		return append(findings, stops("station.yml", err.Error(), "the station does not start with it", "correct the file"))
	}
	connected := slices.DeleteFunc(slices.Sorted(maps.Keys(c.Boards)), func(name string) bool { return c.Boards[name].Port == "" })
	if len(connected) > 0 && os.Geteuid() != 0 {
		findings = append(findings, warning("user", "this user is not root", "only root writes to the devices of "+strings.Join(connected, ", "), "sudo systemctl enable --now slipway-station"))
	}
	for _, kind := range c.Virtual {
		findings = append(findings, ofVirtual(ctx, kind))
	}
	return append(findings, ok("station.yml", "%d boards, %d virtual ones", len(c.Boards), len(c.Virtual)))
}

// ofVirtual looks for the packages that a virtual board runs on.
func ofVirtual(ctx context.Context, kind string) doctor.Finding {
	spec, err := images.Load(kind)
	if err != nil {
		return stops("virtual", err.Error(), "the station does not know the board", "correct station.yml")
	}
	missing, err := host.Missing(ctx, qemu.HostPackages(spec)...)
	if err != nil || len(missing) == 0 {
		return ok("virtual", "%s has its packages", kind)
	}
	return stops("virtual", kind+" lacks "+strings.Join(missing, " "), "the virtual board runs on them", host.AptLine(missing))
}
