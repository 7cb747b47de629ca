DESCRIPTION = "A software eSwitch for DPDK: rte_flow rules without a BlueField"

require dpdk-driver.inc
