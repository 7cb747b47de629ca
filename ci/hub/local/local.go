// Package local runs a hub and a station on this machine, to try them.
package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	"slipway/ci/hub"
	"slipway/ci/hub/access"
	"slipway/ci/hub/page"
	"slipway/ci/job"
	"slipway/ci/station"
	"slipway/layers/localfile"
)

// Options say what the hub and the station need.
type Options struct {
	Dir     string   // for the state of both
	Virtual []string // virtual boards of the station
	Program string   // this program's path, for the station's children
	Log     io.Writer
}

// host is where the hub listens: nobody else reaches it.
const host = "127.0.0.1"

// Run runs both while work does, which gets an admin's connection. From then on this process and its
// children know this hub alone, and not those that the user joined.
func Run(ctx context.Context, o Options, work func(context.Context, *access.Client) error) error {
	if err := errors.Join(os.MkdirAll(o.Dir, 0o700), os.Setenv("XDG_STATE_HOME", filepath.Join(o.Dir, "state"))); err != nil {
		return err
	}
	ready := make(chan [2]string, 1)
	return beside(ctx, func(ctx context.Context) error {
		return hub.Run(ctx, hub.Options{
			Dir: filepath.Join(o.Dir, "hub"), Names: []string{host}, Listen: host + ":0", Page: host + ":0", Log: io.Discard, Admin: "you", AlwaysInvite: true,
			Handler: page.New, Ready: func(address, token string) { ready <- [2]string{address, token} },
		})
	}, func(ctx context.Context) error {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case r := <-ready:
			return o.join(ctx, r[0], r[1], work)
		}
	})
}

// beside runs a program that only its context ends, while work does. It returns work's error, or that
// of a program that ended before.
func beside(caller context.Context, program, work func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(caller)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel(nil)
	running.Go(func() { cancel(program(ctx)) })
	err := work(ctx)
	if ctx.Err() != nil && caller.Err() == nil {
		err = context.Cause(ctx)
	}
	return err
}

// join joins the hub as an admin, and then as a station, which runs while work does.
func (o Options) join(ctx context.Context, address, token string, work func(context.Context, *access.Client) error) error {
	id, err := access.Join(ctx, address, token)
	if err = errors.Join(err, os.Setenv(access.Variable, id.Hub)); err != nil {
		return err
	}
	client, err := id.Dial(ctx)
	if err != nil {
		return err
	}
	defer client.Close()
	invited, err := access.Ask[job.Invitation](ctx, client, job.VerbInvite, job.Person{Name: "here", Role: job.AStation})
	if err != nil {
		return err
	}
	machine, err := access.Join(ctx, address, access.Token(invited.Secret, []byte(id.Authority)))
	if err != nil {
		return err
	}
	config := filepath.Join(o.Dir, "station.yml")
	if err := localfile.Replace(config, fmt.Appendf(nil, "virtual: %q\n", o.Virtual)); err != nil {
		return err
	}
	return beside(ctx, func(ctx context.Context) error {
		return station.Run(ctx, station.Options{Identity: machine, State: filepath.Join(o.Dir, "station"), Config: config, Program: o.Program, Log: o.Log})
	}, func(ctx context.Context) error { return work(ctx, client) })
}
