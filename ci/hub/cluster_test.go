package hub_test

import (
	"testing"
	"time"

	"slipway/ci/hub/access"
	"slipway/ci/hub/hubtest"
	"slipway/ci/job"
	"slipway/images/statetest"
)

func TestMain(m *testing.M) {
	hubtest.Main()
	statetest.Main(m)
}

func dial(t *testing.T, id access.Identity) *access.Client {
	t.Helper()
	c, err := id.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func TestThree(t *testing.T) {
	began := time.Now()
	hubs, address, token := hubtest.Start(t, 0)
	t.Log(time.Since(began))
	id, err := access.Join(t.Context(), address, token)
	if err != nil {
		t.Fatal(err)
	}
	if len(id.Addresses) != 3 || len(id.Pages) != 3 {
		t.Errorf("the identity has %v and %v; want three of each", id.Addresses, id.Pages)
	}
	_ = hubs
	c := dial(t, id)
	p, err := access.Ask[job.People](t.Context(), c, job.VerbPeople, nil)
	t.Log(p, err)
}
