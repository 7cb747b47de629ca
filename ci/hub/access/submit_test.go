package access

import (
	"encoding/json"
	"runtime"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"slipway/ci/job"
	"slipway/layers/bus"
	"slipway/layers/progress"
)

// fakeHub returns a client, and a connection on which a test answers its requests.
func fakeHub(t *testing.T) (c *Client, hub *nats.Conn) {
	t.Helper()
	id, s := newIdentity(t, time.Hour)
	var conns [2]*nats.Conn
	for i := range conns {
		conn, err := s.Connect()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(conn.Close)
		conns[i] = conn
	}
	return &Client{Identity: id, Conn: conns[0]}, conns[1]
}

// answers answers a verb of the client's.
func answers(t *testing.T, c *Client, hub *nats.Conn, verb string, answer func(request []byte) any) {
	t.Helper()
	_, err := hub.Subscribe(job.Subject(c.Name, verb), func(m *nats.Msg) {
		data, _ := json.Marshal(answer(m.Data))
		_ = m.Respond(data)
	})
	if err == nil {
		err = hub.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
}

// A job whose first request has no answer is asked for again, under the same ID.
func TestSubmitWhileAway(t *testing.T) {
	c, hub := fakeHub(t)
	var asked []job.Job
	answers(t, c, hub, job.VerbJobAdd, func(request []byte) any {
		var j job.Job
		_ = json.Unmarshal(request, &j)
		if asked = append(asked, j); len(asked) == 1 {
			return bus.Refusal{Text: "no majority", Away: true}
		}
		return job.Change{Job: j}
	})
	added, err := Submit(t.Context(), c, job.Job{Name: "lab-1"})
	if err != nil || len(asked) != 2 || asked[0].ID != asked[1].ID || added.Job.ID != asked[1].ID || added.Job.ID == "" {
		t.Errorf("Submit = %+v, %v after %+v; want one ID, twice", added, err, asked)
	}
}

// The progress of a job is that which its own station sends.
func TestFollowOwnStation(t *testing.T) {
	c, hub := fakeHub(t)
	j := job.Job{ID: job.NewID(), Station: "bench-1", Name: "lab-1"}
	seen := make(chan string, 2)
	answers(t, c, hub, job.VerbJobWait, func([]byte) any {
		for _, station := range []string{"bench-2", "bench-1"} {
			_ = hub.Publish("prog."+bus.Key(station, j.Name, j.ID), []byte(`{"step":"of `+station+`"}`))
		}
		select {
		case step := <-seen:
			j.By = step
		case <-t.Context().Done():
		}
		j.State = job.Ended
		return job.Change{Job: j}
	})
	ended, err := Follow(t.Context(), c, j, func(e progress.Event) { seen <- e.Step })
	if err != nil || ended.By != "of bench-1" {
		t.Errorf("Follow showed %q, %v; want that of bench-1 alone", ended.By, err)
	}
}

// A builder that is heard is better than one of this machine's architecture.
func TestBuilderArch(t *testing.T) {
	other := job.HubStation{Station: job.Station{Arch: "other", Builds: true}}
	own := job.HubStation{Station: job.Station{Arch: runtime.GOARCH, Builds: true}}
	heard := func(s job.HubStation) job.HubStation { s.Heard = true; return s }
	idle := heard(job.HubStation{Station: job.Station{Arch: "none"}})
	for _, tt := range []struct {
		stations []job.HubStation
		arch     string
		heard    bool
	}{
		{[]job.HubStation{own, heard(other)}, "other", true},
		{[]job.HubStation{heard(other), heard(own)}, runtime.GOARCH, true},
		{[]job.HubStation{idle, other, own}, runtime.GOARCH, false},
		{[]job.HubStation{idle, other}, "other", false},
		{[]job.HubStation{idle}, runtime.GOARCH, true},
	} {
		if arch, heard := builderArch(tt.stations); arch != tt.arch || heard != tt.heard {
			t.Errorf("builderArch(%+v) = %s, %v; want %s, %v", tt.stations, arch, heard, tt.arch, tt.heard)
		}
	}
}
