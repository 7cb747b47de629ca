package store

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"golang.org/x/sys/unix"

	"slipway/flash/fetch"
)

// meanings say what to do about a registry's answer.
var meanings = map[int]string{
	http.StatusUnauthorized:          "podman login HOST  # or docker login HOST",
	http.StatusForbidden:             "podman login HOST  # as a user who may do that in this repository",
	http.StatusMethodNotAllowed:      "curl -I https://HOST/v2/  # look whether the registry is a read-only one, or a cache of another",
	http.StatusRequestEntityTooLarge: "curl -I https://HOST/v2/  # let the proxy before the registry take large requests (nginx: client_max_body_size 0)",
	http.StatusInsufficientStorage:   "repeat the line  # after making room on the registry's disk",
	http.StatusInternalServerError:   "curl -I https://HOST/v2/  # look into the registry's log; its disk may be full",
}

// explain adds the next step to an error of a store.
func explain(place fetch.Place, err error) error {
	switch next := meanings[fetch.StatusOf(err)]; {
	case err == nil || strings.Contains(err.Error(), "\nnext: "):
		return err
	case next != "":
		return fmt.Errorf("%w\nnext: %s", err, strings.ReplaceAll(next, "HOST", place.Host))
	case errors.Is(err, unix.ENOSPC):
		return fmt.Errorf("%w\nnext: df -h  # make room, then repeat the line; Slipway keeps the files that are whole", err)
	case fetch.IsNetworkError(err):
		return fmt.Errorf("%w\nnext: curl -I https://%s/v2/", err, place.Host)
	}
	return err
}

// size is a number of bytes as people say it.
func size(n int64) string {
	switch {
	case n >= 1e9:
		return fmt.Sprintf("%.1f GB", float64(n)/1e9)
	case n >= 1e6:
		return fmt.Sprintf("%.1f MB", float64(n)/1e6)
	case n >= 1e3:
		return fmt.Sprintf("%.1f kB", float64(n)/1e3)
	}
	return fmt.Sprintf("%d B", n)
}
