package offload

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"slipway/ci/report"
	"slipway/ci/suite"
	"slipway/images"
	"slipway/layers/plaintext"
)

// testpmd is an interactive session with dpdk-testpmd on a terminal. A pipe does not do: testpmd
// reads all commands of a pipe at once, and packets must flow between them.
type testpmd struct {
	keys   io.Writer
	screen io.Reader
	said   strings.Builder // output since the last command
}

const (
	testpmdPrompt   = "testpmd> "
	maxTestpmdBytes = 1 << 20 // between two prompts
)

// withTestpmd starts testpmd with the board's ports, calls talk, and quits it if talk succeeds.
func withTestpmd(ctx context.Context, s *suite.Session, d *images.DPU, talk func(*testpmd) error) error {
	argv := append([]string{"dpdk-testpmd"}, d.EAL...)
	argv = append(argv, "--", "--total-num-mbufs=2048", "--flow-isolate-all", "--port-topology=loop", "-i")
	return s.Terminal(ctx, func(keys io.Writer, screen io.Reader) error {
		t := &testpmd{keys: keys, screen: screen}
		if _, err := t.readUntil(testpmdPrompt); err != nil {
			return fmt.Errorf("start %s: %w", suite.ShellLine(argv), err)
		}
		if err := talk(t); err != nil {
			return err
		}
		return t.quit()
	}, argv...)
}

// runCommand types a command, which testpmd echoes, and returns its output up to the next prompt.
func (t *testpmd) runCommand(line string) (string, error) {
	if _, err := io.WriteString(t.keys, line+"\n"); err != nil {
		return "", fmt.Errorf("testpmd: %s: %w", line, err)
	}
	if _, err := t.readUntil(line); err != nil {
		return "", fmt.Errorf("testpmd: %s: %w", line, err)
	}
	out, err := t.readUntil(testpmdPrompt)
	if err != nil {
		return "", fmt.Errorf("testpmd: %s: %w", line, err)
	}
	return strings.TrimSpace(out), nil
}

// quit types quit and waits until testpmd ends. Only then are the ports released.
func (t *testpmd) quit() error {
	if _, err := io.WriteString(t.keys, "quit\n"); err != nil {
		return fmt.Errorf("testpmd: quit: %w", err)
	}
	_, err := io.Copy(io.Discard, t.screen)
	return err
}

// readUntil reads testpmd's output up to the next occurrence of text, and returns what came before
// text. It fails if testpmd ends or prints more than maxTestpmdBytes.
func (t *testpmd) readUntil(text string) (string, error) {
	buffer := make([]byte, 4<<10)
	for {
		said := plaintext.WithoutEscapes(t.said.String())
		if before, after, found := strings.Cut(said, text); found {
			t.said.Reset()
			t.said.WriteString(after)
			return before, nil
		}
		if len(said) > maxTestpmdBytes {
			return "", fmt.Errorf("it printed more than %d bytes", maxTestpmdBytes)
		}
		n, err := t.screen.Read(buffer)
		t.said.Write(buffer[:n])
		if n == 0 && err != nil {
			if errors.Is(err, io.EOF) {
				err = errors.New("it ended")
			}
			return "", fmt.Errorf("%w; its last words:\n%s", err, plaintext.CleanTail(said, report.MaxSawBytes/2))
		}
	}
}

// dpdkPort is a line of "show port summary all".
type dpdkPort struct {
	number            int
	mac, name, driver string
}

var summaryLine = plaintext.Regexp(`(?m)^(\d{1,5}) +((?:[0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}) +(\S{1,64}) +(\S{1,64}) +(?:up|down)\b`)

// parsePorts returns the ports, at most 64, in the output of "show port summary all".
func parsePorts(text string) (all []dpdkPort) {
	for _, m := range summaryLine().FindAllStringSubmatch(strings.ReplaceAll(text, "\r", ""), 64) {
		number, _ := strconv.Atoi(m[1])
		all = append(all, dpdkPort{number, strings.ToLower(m[2]), m[3], m[4]})
	}
	return all
}

// listPorts returns all ports of testpmd. It fails if testpmd has fewer than board.yml, or does not
// number them from 0. It compares no names.
func (t *testpmd) listPorts(d *images.DPU) ([]dpdkPort, error) {
	out, err := t.runCommand("show port summary all")
	if err != nil {
		return nil, err
	}
	all := parsePorts(out)
	for i, name := range d.Ports {
		if i >= len(all) || all[i].number != i {
			return nil, fmt.Errorf("DPDK has %d ports; board.yml wants port %d for %s:\n%s", len(all), i, name, out)
		}
	}
	return all, nil
}

// drivers maps DPDK drivers to what they prove: hardware or software offload. Others prove neither.
var drivers = map[string]report.Proof{
	"mlx5_pci":       report.ProvesHardware,
	"mlx5_auxiliary": report.ProvesHardware, // of a scalable function
	docaDriver:       report.ProvesHardware,
	"net_swflow":     report.ProvesSoftware,
	"net_tap":        report.ProvesSoftware,
	"net_af_packet":  report.ProvesSoftware,
	"net_af_xdp":     report.ProvesSoftware,
	"net_pcap":       report.ProvesSoftware,
	"net_null":       report.ProvesSoftware,
	"net_ring":       report.ProvesSoftware,
}

// driverProof returns what a set of drivers proves together: software if one driver is software,
// else nothing if one driver is unknown, else hardware.
func driverProof(names ...string) report.Proof {
	proof := report.ProvesHardware
	for _, name := range names {
		switch drivers[name] {
		case report.ProvesSoftware:
			return report.ProvesSoftware
		case "":
			proof = ""
		}
	}
	return proof
}

var (
	ruleCreated      = plaintext.Regexp(`Flow rule #(\d{1,9}) created`)
	packetsReceived  = plaintext.Regexp(`Forward statistics for port 0 [^\n]*\n\s*RX-packets: (\d{1,18})\s`)
	objectsAllocated = plaintext.Regexp(`(?mi)^Total +: .*\scount alloc: (\d{1,18})\s`)
	buffersFree      = plaintext.Regexp(`(?m)^ *(?:common_pool|total_cache)_count=(\d{1,9})\s*$`)
	ruleCount        = plaintext.Regexp(`(?m)^ *(hits_set|bytes_set|hits|bytes): (\d{1,19})\s*$`)
)

// createRule types a testpmd command that creates a flow rule, and returns the number of the rule.
func (t *testpmd) createRule(rule string) (int, error) {
	out, err := t.runCommand(rule)
	if err != nil {
		return 0, err
	}
	m := ruleCreated().FindStringSubmatch(out)
	if m == nil {
		return 0, fmt.Errorf("the driver refused the rule %q:\n%s", rule, out)
	}
	return strconv.Atoi(m[1])
}

// describeMemory returns DPDK's allocated objects and free packet buffers, to compare later.
func (t *testpmd) describeMemory() (string, error) {
	heap, err := t.runCommand("dump_socket_mem")
	if err != nil {
		return "", err
	}
	pools, err := t.runCommand("dump_mempool")
	free := 0
	for _, m := range buffersFree().FindAllStringSubmatch(pools, 64) {
		n, _ := strconv.Atoi(m[1])
		free += n
	}
	return fmt.Sprintf("%s objects, %d free buffers", firstGroup(objectsAllocated(), heap), free), err
}

// firstGroup returns the text that the pattern's first group matches, or "".
func firstGroup(pattern *regexp.Regexp, text string) string {
	if m := pattern.FindStringSubmatch(text); m != nil {
		return m[1]
	}
	return ""
}

// queryCount reads the counter of a rule of port 0.
func (t *testpmd) queryCount(rule int) (tally, error) {
	out, err := t.runCommand(fmt.Sprintf("flow query 0 %d count", rule))
	if err != nil {
		return tally{}, err
	}
	return parseCount(out)
}

// parseCount returns the packets and bytes in the output of flow query, which must have both.
func parseCount(out string) (c tally, err error) {
	said := map[string]int64{}
	for _, m := range ruleCount().FindAllStringSubmatch(strings.ReplaceAll(out, "\r", ""), 8) {
		if said[m[1]], err = strconv.ParseInt(m[2], 10, 64); err != nil {
			return c, fmt.Errorf("the rule's count: %w", err)
		}
	}
	if said["hits_set"] != 1 || said["bytes_set"] != 1 {
		return c, fmt.Errorf("the rule has no count of packets and bytes:\n%s", out)
	}
	return tally{said["hits"], said["bytes"]}, nil
}
