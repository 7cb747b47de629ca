package hub

import (
	"encoding/json"
	"net/http"
	"strings"

	"slipway/ci/job"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
)

// maxJoinBytes limits the request of somebody who is not known yet.
const maxJoinBytes = 1 << 10

// ServeJoin answers a person or station that has an invitation.
func (h *Hub) ServeJoin(w http.ResponseWriter, r *http.Request) {
	data, err := localfile.ReadAll(r.Body, "the request", maxJoinBytes)
	var in job.Join
	if err == nil {
		err = json.Unmarshal(data, &in)
	}
	var joined job.Joined
	if err == nil {
		joined, err = h.Join(r.Context(), in)
	}
	if err != nil {
		http.Error(w, plaintext.Printable(strings.TrimSpace(err.Error())), http.StatusForbidden)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(joined) // or the caller is gone, and is invited again
}
