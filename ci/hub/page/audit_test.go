package page

import (
	"net/http"
	"strings"
	"sync"
	"testing"

	"slipway/ci/hub/access"
	"slipway/ci/job"
)

// The page of the audit links to older records, and that of people shows an open invitation and withdraws
// it.
func TestOlderAudit(t *testing.T) {
	s := newSite(t)
	ada := s.signIn(s.admin)
	request[job.Invitation](t, s.admin, job.VerbInvite, job.Person{V: 1, Name: "otto", Role: job.Viewer})
	if _, text := ada.get("/people"); !strings.Contains(text, "viewer · by ada · invited until ") {
		t.Errorf("the page lacks an open invitation: %s", text)
	}
	if status, text := ada.post("/people/remove", "name", "otto"); status != http.StatusSeeOther {
		t.Errorf("withdraw an invitation: %d %s", status, text)
	}
	if _, text := ada.get("/people"); strings.Contains(text, "otto") {
		t.Errorf("the page has a withdrawn invitation: %s", text)
	}
	if _, text := ada.get("/log"); strings.Contains(text, "?before=") || !strings.Contains(text, "ada: invite") {
		t.Errorf("a short log has no older records: %s", text)
	}
	var group sync.WaitGroup
	for range 10 {
		group.Go(func() {
			for range 26 { // each is two records
				if _, err := access.Ask[none](t.Context(), s.admin, job.VerbJobAdd, job.Job{}); err == nil {
					t.Error("an empty job was added")
				}
			}
		})
	}
	group.Wait()
	_, text := ada.get("/log")
	_, link, found := strings.Cut(text, `href="?before=`)
	number, _, _ := strings.Cut(link, `"`)
	if !found {
		t.Fatalf("a log of more than 500 records has no link to older ones: %s", text[len(text)-2000:])
	}
	if _, older := ada.get("/log?before=" + number); !strings.Contains(older, "ada: invite") || strings.Contains(text, "ada: invite") {
		t.Errorf("the log before %s lacks the first records", number)
	}
}
