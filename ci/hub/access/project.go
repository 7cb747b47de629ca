package access

import (
	"context"
	"fmt"
	"time"

	"slipway/ci/job"
	"slipway/flash/fetch"
	"slipway/flash/store"
	"slipway/layers/localfile"
)

// projects returns the place of projects in the hub.
func (id Identity) projects(digest string) fetch.Place {
	hub := id.registry()
	return fetch.Place{Host: hub.Address, Name: "projects", Digest: digest, Hub: &hub}
}

// registry returns the hub as a registry for this identity.
func (id Identity) registry() fetch.HubAccess {
	hub := fetch.HubAccess{Address: id.Hub, Roots: id.roots(), Login: func() (string, string, error) {
		password, err := id.Password(time.Now())
		return id.Name, password, err
	}}
	if len(id.Pages) > 0 {
		hub.DialTLS = id.pageDialer()
	}
	return hub
}

// SendProject sends the project of a board to the hub, unless the hub has it, and returns its digest:
// "" for one of Slipway's own boards.
func (id Identity) SendProject(ctx context.Context, board string) (digest string, err error) {
	data, err := job.OwnProject(board)
	if err != nil || data == nil {
		return "", err
	}
	return store.PutFile(ctx, id.projects(""), data)
}

// FetchProject unpacks a project of the hub into a folder, unless the folder exists.
func (id Identity) FetchProject(ctx context.Context, digest, dir string) error {
	if localfile.Exists(dir) {
		return nil
	}
	data, err := store.GetFile(ctx, id.projects(digest), job.MaxProjectBytes)
	if err != nil {
		return fmt.Errorf("fetch the project's files: %w", err)
	}
	return job.UnpackProject(data, dir)
}
