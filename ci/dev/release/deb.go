package release

import (
	"bytes"
	"crypto/md5"
	"embed"
	"fmt"
	"strings"
	"time"
)

// This file writes Debian packages, which are ar archives of two tar archives: deb(5). The bytes of
// dpkg-deb would depend on the release of Debian and on the number of CPUs.

const description = `builds Yocto images for Jetsons and BlueFields, and tests the boards
 Slipway builds images for NVIDIA Jetson boards and BlueField DPUs, writes them
 to devices, brings containers and settings onto running boards over SSH, and
 proves by suites of checks that a board works.
 .
 It has one static program with all boards and suites inside.`

// overrides are findings of lintian that are intended.
const overrides = `# One program runs on every release of Debian and Ubuntu.
slipway: statically-linked-binary [usr/bin/slipway]
# It has the words of an error, and nothing of zlib.
slipway: embedded-library zlib [usr/bin/slipway]
# slipway COMMAND --help explains each command.
slipway: no-manual-page [usr/bin/slipway]
`

// units are systemd's units for a hub and a station. Installing the package starts none of them.
//
//go:embed systemd
var units embed.FS

const copyright = `Slipway
Copyright (C) %d the authors of Slipway
License: Apache-2.0

The text of the licence is in /usr/share/common-licenses/Apache-2.0.
The licences of the Go modules that the program links are in
/usr/share/doc/slipway/NOTICES.gz.
`

// debVersion returns dpkg's form of the version: 1.0.0-rc-1 is 1.0.0~rc.1, sorted before 1.0.0.
func (p product) debVersion() string {
	number, before, is := strings.Cut(p.number(), "-")
	if !is {
		return number
	}
	return number + "~" + strings.ReplaceAll(before, "-", ".")
}

// packDeb returns the Debian package for one architecture.
func (p product) packDeb(arch string) ([]byte, error) {
	files, err := p.debFiles(arch)
	if err != nil {
		return nil, err
	}
	data, err := packTarGz("./", files, p.date)
	if err != nil {
		return nil, err
	}
	control, err := packTarGz("./", []file{
		{path: "control", mode: 0o644, data: []byte(p.debControl(arch, files))},
		{path: "md5sums", mode: 0o644, data: []byte(debSums(files))},
	}, p.date)
	if err != nil {
		return nil, err
	}
	return packAr(p.date, []file{
		{path: "debian-binary", data: []byte("2.0\n")}, {path: "control.tar.gz", data: control}, {path: "data.tar.gz", data: data},
	}), nil
}

// debFiles returns the package's files, without Slipway's own licence, whose text Debian has.
func (p product) debFiles(arch string) (files []file, err error) {
	files = []file{
		{path: "usr/bin/slipway", mode: 0o755, data: p.programs[arch].data},
		{path: docFolder + "/copyright", mode: 0o644, data: fmt.Appendf(nil, copyright, p.date.Year())},
		{path: docFolder + "/changelog.gz", mode: 0o644, data: compress([]byte(p.debChangelog()))},
		{path: "usr/share/lintian/overrides/slipway", mode: 0o644, data: []byte(overrides)},
	}
	for _, f := range p.docs {
		switch f.path {
		case licencePath: // Debian has the text
			continue
		case noticesPath:
			f.path, f.data = f.path+".gz", compress(f.data)
		}
		files = append(files, f)
	}
	for _, name := range []string{"slipway-hub.service", "slipway-station.service"} {
		text, err := units.ReadFile("systemd/" + name)
		if err != nil {
			return nil, err
		}
		files = append(files, file{path: "usr/lib/systemd/system/" + name, mode: 0o644, data: text})
	}
	return files, nil
}

// debControl returns the package's control file, with the installed size of the files.
func (p product) debControl(arch string, files []file) string {
	size := 0
	for _, f := range files {
		size += len(f.data)
	}
	return fmt.Sprintf(`Package: slipway
Version: %s
Architecture: %s
Maintainer: %s
Installed-Size: %d
Recommends: ca-certificates, git, openssh-client
Section: devel
Priority: optional
Description: %s
`, p.debVersion(), arch, p.author, (size+1023)/1024, description)
}

func (p product) debChangelog() string {
	return fmt.Sprintf("slipway (%s) unstable; urgency=medium\n\n  * Commit %s.\n\n -- %s  %s\n", p.debVersion(), p.id, p.author, p.date.Format(time.RFC1123Z))
}

// debSums returns the text of the file md5sums, which "dpkg --verify" reads.
func debSums(files []file) string {
	var b strings.Builder
	for _, f := range files {
		fmt.Fprintf(&b, "%x  %s\n", md5.Sum(f.data), f.path)
	}
	return b.String()
}

// packAr returns files as an ar(5) archive, each with this date, owner 0 and mode 100644.
func packAr(date time.Time, files []file) []byte {
	b := bytes.NewBufferString("!<arch>\n")
	for _, f := range files {
		fmt.Fprintf(b, "%-16s%-12d%-6d%-6d%-8s%-10d`\n", f.path, date.Unix(), 0, 0, "100644", len(f.data))
		b.Write(f.data)
		if len(f.data)%2 == 1 {
			b.WriteByte('\n')
		}
	}
	return b.Bytes()
}
