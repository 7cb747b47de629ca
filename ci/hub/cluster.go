package hub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"slipway/ci/job"
	"slipway/layers/bus"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
	"slipway/layers/run"
)

// routePort is where hubs of a cluster listen for each other, unless the list of them says otherwise.
const routePort = "6222"

// folder is what hub.json of a state folder says: which hub the folder is of.
type folder struct {
	V      job.Form `json:"v"`
	Name   string   `json:"name"`
	Hubs   []string `json:"hubs,omitempty"`   // HOST:PORT of all for each other; none for a hub alone
	NATS   []string `json:"nats,omitempty"`   // HOST:PORT of another NATS that keeps the records
	Page   string   `json:"page,omitempty"`   // host:port
	Joined bool     `json:"joined,omitempty"` // another hub made its keys, and invited the first admin
	Began  bool     `json:"began,omitempty"`  // it has been part of a majority
}

func folderName(dir string) string { return filepath.Join(dir, "hub.json") }

// readFolder reads hub.json. One without it is new, or of a hub alone of an earlier Slipway.
func readFolder(dir string) (f folder, isNew bool, err error) {
	data, err := localfile.Read(folderName(dir), 64<<10)
	if errors.Is(err, fs.ErrNotExist) {
		return folder{}, !localfile.Exists(filepath.Join(dir, "engine")), nil
	}
	if err == nil {
		err = plaintext.JSONError(json.Unmarshal(data, &f))
	}
	if err != nil {
		err = fmt.Errorf("read %s: %w", folderName(dir), err)
	}
	return f, false, err
}

// OtherNATS returns where a state folder's hub keeps its records, if that is another NATS.
func OtherNATS(dir string) (hosts []string, err error) {
	f, _, err := readFolder(dir)
	return f.NATS, err
}

// openFolder returns what a state folder is of. It refuses one of another hub: the streams of a hub
// alone are not seen in a cluster, and two hubs with one name would be one server.
func openFolder(o Options) (folder, error) {
	now, err := parseCluster(o.Cluster, o.Names)
	if err == nil && o.NATS != "" {
		now.NATS, err = bus.Hosts(o.NATS)
	}
	if err != nil {
		return now, err
	}
	was, isNew, err := readFolder(o.Dir)
	if err != nil || isNew {
		return now, err
	}
	const newDir = "\nnext: slipway hub --name=%s --state=NEW %s  # a new hub, which people and stations join again"
	switch {
	case len(was.NATS) == 0 && len(now.NATS) > 0:
		return now, fmt.Errorf("the state folder %s has records of its own, which another NATS would not have"+newDir, o.Dir, o.Names[0], "--nats=URL")
	case len(was.NATS) > 0 && len(now.NATS) == 0:
		urls := "nats://" + strings.Join(was.NATS, ",nats://")
		return now, fmt.Errorf("the records of the state folder %s are in another NATS\nnext: slipway hub --name=%s --nats=%s", o.Dir, was.Name, urls)
	case len(was.Hubs) == 0 && len(now.Hubs) > 0:
		return now, fmt.Errorf("the state folder %s is of a hub alone, and a cluster would not see its records"+newDir, o.Dir, o.Names[0], "--cluster="+strings.Join(o.Cluster, ","))
	case len(was.Hubs) > 0 && len(now.Hubs) == 0:
		return now, fmt.Errorf("the state folder %s is of a cluster, and a hub alone would not see its records\nnext: slipway hub --name=%s --cluster=%s", o.Dir, was.Name, strings.Join(was.Hubs, ","))
	case len(was.Hubs) > 0 && (was.Name != now.Name || !slices.Equal(hostsOf(was.Hubs), hostsOf(now.Hubs))):
		return now, fmt.Errorf("the state folder %s is of the hub %s\nnext: slipway hub --name=%[2]s --cluster=%s", o.Dir, was.Name, strings.Join(was.Hubs, ","))
	}
	now.Joined, now.Began = was.Joined, was.Began
	return now, nil
}

// parseCluster reads a list of HOST or HOST:PORT, sorted. The host that is among the hub's names is
// this one.
func parseCluster(list, names []string) (folder, error) {
	f := folder{V: job.Version, Name: names[0]}
	if len(list) == 0 {
		return f, nil
	}
	if len(list) != 3 { // three keep each record, so more would not outlive the loss of two
		return f, fmt.Errorf("--cluster names %d hubs, want 3, of which one may be lost\nnext: slipway hub --name=h1 --cluster=h1,h2,h3", len(list))
	}
	own := 0
	for _, at := range list {
		host, _, err := net.SplitHostPort(at)
		if err != nil {
			host, at = at, net.JoinHostPort(at, routePort)
		}
		if slices.Contains(names, host) {
			f.Name, own = host, own+1
		}
		if slices.Contains(hostsOf(f.Hubs), host) {
			return f, fmt.Errorf("--cluster names %s twice", host)
		}
		f.Hubs = append(f.Hubs, at)
	}
	slices.Sort(f.Hubs)
	if own != 1 {
		return f, fmt.Errorf("--cluster names %d hubs with a --name of this machine, want 1\nnext: slipway hub --name=%s --cluster=%s", own, hostOf(list[0]), strings.Join(list, ","))
	}
	return f, nil
}

func hostOf(at string) string {
	if host, _, err := net.SplitHostPort(at); err == nil {
		return host
	}
	return at
}

func hostsOf(hubs []string) (hosts []string) {
	for _, at := range hubs {
		hosts = append(hosts, hostOf(at))
	}
	return hosts
}

// server returns the server's part in the cluster, nil for a hub alone. It listens where NATS does.
func (f folder) server(listen string) *bus.Cluster {
	i := slices.Index(hostsOf(f.Hubs), f.Name)
	if i < 0 {
		return nil
	}
	_, port, _ := net.SplitHostPort(f.Hubs[i])
	return &bus.Cluster{Name: "slipway", Listen: net.JoinHostPort(hostOf(listen), port), Routes: f.Hubs}
}

// replicas is how many hubs keep each record.
func (f folder) replicas() int { return min(max(1, len(f.Hubs)), 3) }

// showMissing shows which hubs the server does not reach, until ctx ends. All must be there at the
// first start, because three keep each record. Later, a majority is enough.
func (f folder) showMissing(ctx context.Context, server *bus.Server, show func(string)) {
	for said := ""; ctx.Err() == nil; _ = run.Sleep(ctx, 100*time.Millisecond) {
		others := server.Others()
		missing := slices.DeleteFunc(f.others(), func(host string) bool { return slices.Contains(others, host) })
		text := fmt.Sprintf("waiting for %s: %d of %d hubs", strings.Join(missing, plaintext.Either(f.Began, " or ", " and ")), len(f.Hubs)-len(missing), len(f.Hubs))
		if len(missing) == 0 {
			text = "waiting until the hubs agree"
		}
		if text != said {
			show(text)
		}
		said = text
	}
}

// others returns the names of the other hubs.
func (f folder) others() []string {
	return slices.DeleteFunc(hostsOf(f.Hubs), func(host string) bool { return host == f.Name })
}

// away is the answer of a hub that could not keep what it is asked for.
func (f folder) away() error {
	what := plaintext.Either(len(f.NATS) > 0, "the NATS that keeps its records", "a majority of the hubs")
	return bus.AsAway("this hub does not reach " + what + ", and answers once it does")
}

// announce keeps where this hub is reached. It returns once the hub's own index has that.
func (h *Hub) announce(ctx context.Context) error {
	key := bus.Key(h.folder.Name)
	_, _, err := edit(ctx, h, h.hubs, key, func(p *job.HubPlace, _ bool) error {
		if *p == h.Place {
			return errSame
		}
		*p = h.Place
		data, _ := json.Marshal(p) // never fails
		return h.audit(ctx, Record{Who: h.folder.Name, Role: job.AHub, Verb: "announce", What: string(data)})
	})
	return err
}

// places returns where NATS and the pages of all hubs are, this one's first.
func (h *Hub) places() (addresses, pages []string) {
	all := []job.HubPlace{h.Place}
	for _, host := range h.folder.others() {
		if p, _, known := get[job.HubPlace](h.index, "hubs", bus.Key(host)); known {
			all = append(all, p)
		}
	}
	for _, p := range all {
		addresses, pages = append(addresses, p.Address), append(pages, p.Page)
	}
	return addresses, pages
}
